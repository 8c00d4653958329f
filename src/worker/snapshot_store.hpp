#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/kv/snapshot_index.hpp"
#include "baton/net/connection.hpp"
#include "worker/weight_store.hpp"

namespace baton::worker {

/// The host's snapshot store: a shared memory file for each model identity in use, and the directory that says which slot
/// holds which block. Replicas connect to its unix socket; they map the file and copy blocks themselves. The same socket
/// serves the packed weights that replicas share (WeightStore). One thread: the io_context's.
class SnapshotStore {
  public:
    struct Options {
        std::string socket_path;
        std::string secret;
        std::string name;             ///< of this worker, for the handshake
        uint64_t bytes_max = 0;       ///< over all files; 0: no store
        uint64_t weight_bytes_max = 0;  ///< of one image of packed weights; 0: none is shared
        int64_t lease_ms = 10'000;    ///< twice the time a transfer may take: a reader has given up before its lease ends
        /// Says whether this replica was spawned here and runs: others get no store.
        std::function<bool(const std::string& model_uid, const wire::ReplicaTarget&)> is_running;
    };
    SnapshotStore(boost::asio::io_context& io, Options options);
    ~SnapshotStore();
    SnapshotStore(const SnapshotStore&) = delete;
    SnapshotStore& operator=(const SnapshotStore&) = delete;

    [[nodiscard]] Expected<void> listen();
    /// The model's last replica was stopped for good: files only it used are dropped.
    void model_gone(const std::string& model_uid);
    /// Sums over all files.
    [[nodiscard]] kv::SnapshotIndex::Counts counts() const;
    [[nodiscard]] size_t files() const { return files_.size(); }
    [[nodiscard]] WeightStore::Counts weight_counts() const { return weights_.counts(); }
    /// Closes the socket and all links.
    void close();

  private:
    struct File {
        UniqueFd fd;
        uint64_t bytes = 0, slot_bytes = 0;
        uint32_t slots = 0;
        std::unique_ptr<kv::SnapshotIndex> index;
        std::set<std::string> model_uids;
    };
    struct Link {
        std::shared_ptr<net::Connection> connection;
        Digest identity{};
        bool open = false;
    };

    void on_link(std::shared_ptr<net::Connection> connection);
    void on_message(uint64_t owner, const wire::Message& message);
    void on_close(uint64_t owner);
    void open(uint64_t owner, const wire::StoreOpen& ask);
    [[nodiscard]] bool on_weights(uint64_t owner, const wire::Message& message);
    [[nodiscard]] File* find_or_make(const wire::StoreOpen& ask);
    [[nodiscard]] File* file_of(uint64_t owner);
    void tick();

    boost::asio::io_context& io_;
    Options options_;
    std::unique_ptr<net::Listener> listener_;
    boost::asio::steady_timer timer_;
    std::map<Digest, File> files_;
    std::unordered_map<uint64_t, Link> links_;
    WeightStore weights_;
    uint64_t next_owner_ = 1;
    uint64_t bytes_used_ = 0;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // handlers that outlive us look here first
};

}  // namespace baton::worker

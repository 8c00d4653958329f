#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/config/replica_settings.hpp"
#include "baton/engine/engine.hpp"
#include "baton/net/connection.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::replica {

/// Offers a prefill replica may have open at once.
inline constexpr uint32_t kProgressSlots = 256;

/// The hand-off links of a replica. A decode replica connects to every prefill replica that the supervisor names; a
/// prefill replica accepts. After the LinkHello exchange the pair's mover is fixed and logged. Control thread only.
class PeerLinks {
  public:
    struct Services {
        boost::asio::io_context& io;
        const config::ReplicaSettings& settings;
        const std::string& secret;
        std::string host_id;
        Digest model{};
        xavier::SharedPool& pool;
        std::function<engine::Engine&()> engine;
        std::function<xavier::TransferThread&()> transfer;
        std::function<void(wire::LinkState)> report;
        backend::DevicePool* device = nullptr;  ///< where the pool lies, if on a device; outlives the links
        std::function<void(const wire::Message&)> seen{};  ///< called with each message for the core before it is posted; may be null
    };
    explicit PeerLinks(Services services);
    ~PeerLinks();

    /// Opens the listening sockets; the endpoint peers shall use.
    Expected<net::Endpoint> listen();
    /// The supervisor's list: links to what is new, drops what is gone.
    void set_peers(const wire::Peers& peers);
    /// Sends to a linked peer; dropped when it is not linked (the core learns of that by on_peer_down).
    void send(wire::ReplicaTarget peer, const wire::Message& message);
    void close();

  private:
    struct Link;
    using LinkPtr = std::shared_ptr<Link>;
    /// What this replica is, as told over that link; a decode replica leaves out what did not work with that peer before.
    [[nodiscard]] wire::LinkHello own_hello(const Link& link) const;
    [[nodiscard]] Expected<void> add_source(const LinkPtr& link, const wire::LinkHello& hello, const std::string& mover,
                                            std::vector<UniqueFd> fds);
    void dial(const wire::Peer& peer);
    void dialled(const wire::Peer& peer, std::shared_ptr<net::Connection> connection);
    void redial_later(ReplicaId replica);
    void accepted(std::shared_ptr<net::Connection> connection);
    void attach(const LinkPtr& link);
    void on_message(const LinkPtr& link, net::Connection::Received received);
    void on_hello(const LinkPtr& link, const wire::LinkHello& hello, std::vector<UniqueFd> fds);
    void refuse(const LinkPtr& link, const Error& error);
    void on_close(const LinkPtr& link, const Error& error);
    void set_up(const LinkPtr& link, std::string mover);
    void set_down(const LinkPtr& link, const std::string& reason);
    void report_links();

    Services services_;
    std::unique_ptr<net::Listener> listener_;
    std::map<ReplicaId, wire::Peer> wanted_;   ///< decode: prefill peers to be linked with
    std::map<ReplicaId, wire::ReplicaTarget> dialling_;  ///< decode: connections on their way
    std::map<ReplicaId, LinkPtr> links_;       ///< the newest link of each peer slot
    std::set<LinkPtr> strangers_;              ///< accepted, not yet greeted
    std::map<ReplicaId, int> dial_failures_;
    std::set<std::pair<ReplicaId, Epoch>> unmappable_;  ///< peers whose pool the driver would not map
    std::vector<std::byte> device_handle_;     ///< empty where there is no device, or it cannot be shared
    std::string drop_;                         ///< fault hook: name of a message to lose
    bool closed_ = false;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::replica

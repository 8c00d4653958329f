#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "baton/backend/backend.hpp"
#include "baton/config/replica_settings.hpp"
#include "baton/net/connection.hpp"

namespace baton::replica {

/// A replica's share of the packed weights of its host: a link of its own to the worker, which says whether to fill an image,
/// to use one, or to do without. The image is held as long as this lives. The link has a thread, since it must beat while
/// the weights are packed.
class SharedWeights {
  public:
    SharedWeights(const config::ReplicaSettings& settings, const std::string& secret);
    ~SharedWeights();
    SharedWeights(const SharedWeights&) = delete;
    SharedWeights& operator=(const SharedWeights&) = delete;

    struct Image {
        UniqueFd fd;            ///< sealed; or none: pack privately
        bool filled = false;    ///< by this replica
        std::string reason;     ///< why there is none
    };
    using Fill = std::function<Expected<void>(int fd)>;
    /// Asks for `image` and waits until it is ready, or until it is this replica's turn to fill it, which `fill` does. Once.
    /// Waits no longer than two replicas may take to fill it. The caller's thread.
    [[nodiscard]] Image acquire(const backend::WeightImage& image, const Fill& fill);

  private:
    [[nodiscard]] Image use(net::Connection::Received grant, const backend::WeightImage& image, const Fill& fill);
    void connected(Expected<std::shared_ptr<net::Connection>> connection, const wire::WeightsOpen& ask);
    void lost(const std::string& reason);

    const config::ReplicaSettings& settings_;
    const std::string& secret_;
    boost::asio::io_context io_{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
    boost::asio::steady_timer give_up_{io_};
    std::shared_ptr<net::Connection> link_;  // thread_'s, once it runs
    std::mutex mutex_;
    std::condition_variable change_;
    std::optional<net::Connection::Received> grant_;  ///< guarded by mutex_; the worker sends one
    std::string lost_;                              ///< guarded by mutex_; why the link is no more
    std::thread thread_;
};

}  // namespace baton::replica

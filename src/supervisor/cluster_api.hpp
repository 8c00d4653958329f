#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>

#include "auth.hpp"
#include "baton/config/settings.hpp"
#include "baton/http/router.hpp"
#include "deployments.hpp"
#include "workers.hpp"

namespace baton::supervisor {

/// The part of the control API that is not about one model: health, workers, the cluster, metrics, tokens.
class ClusterApi {
  public:
    struct Services {
        boost::asio::io_context& control;
        boost::asio::thread_pool& background;
        const config::SupervisorSettings& settings;
        Deployments& deployments;
        Workers& workers;
        Auth* auth;                              ///< null: no users
        std::function<std::string()> address;    ///< ip:port of the HTTP server
        std::function<bool()> draining;
        std::function<std::string()> metrics;    ///< control thread
        std::function<void()> stop;              ///< ends the process, after the answer
    };
    explicit ClusterApi(Services services);
    void add_routes(http::Router& router);
    /// Why /ready says no, or "". Control thread.
    [[nodiscard]] std::string not_ready() const;

  private:
    using Exchange = std::shared_ptr<http::Exchange>;
    void on_control(http::Router& router, const char* method, const char* pattern, http::Access access, std::function<void(const Exchange&)> handler);
    void add_token_routes(http::Router& router);
    void log_in(const Exchange& exchange, const std::string& body);
    void list_workers(const Exchange& exchange);
    void status(const Exchange& exchange);
    void cluster_info(const Exchange& exchange);
    void ready(const Exchange& exchange);

    Services services_;
    int64_t started_unix_;
};

}  // namespace baton::supervisor

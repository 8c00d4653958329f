#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "baton/config/settings.hpp"
#include "baton/http/router.hpp"
#include "deployments.hpp"
#include "workers.hpp"

namespace baton::supervisor {

/// The control API: models, replicas, workers, health. Handlers hop to the control thread.
class ControlApi {
  public:
    struct Services {
        boost::asio::io_context& control;
        const config::SupervisorSettings& settings;
        Deployments& deployments;
        Workers& workers;
        std::function<std::string()> address;    ///< ip:port of the HTTP server
        std::function<bool()> draining;
        std::function<std::string()> metrics;    ///< control thread
        std::function<void()> stop;              ///< ends the process, after the answer
    };
    explicit ControlApi(Services services);
    void add_routes(http::Router& router);

  private:
    using Exchange = std::shared_ptr<http::Exchange>;
    using Handler = std::function<void(Exchange, const http::Params&)>;
    void on_control(http::Router& router, const char* method, const char* pattern, http::Router::Rule rule, Handler handler);
    void launch(const Exchange& exchange, const std::string& body);
    void list_models(const Exchange& exchange);
    void describe(const Exchange& exchange, const std::string& uid);
    void instances(const Exchange& exchange);
    void replicas(const Exchange& exchange, const std::string& uid);
    void progress(const Exchange& exchange, const std::string& uid);
    void events(const Exchange& exchange, const std::string& uid);
    void list_workers(const Exchange& exchange);
    void status(const Exchange& exchange);
    void ready(const Exchange& exchange);

    Services services_;
    int64_t started_unix_;
};

}  // namespace baton::supervisor

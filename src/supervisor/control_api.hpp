#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "api_answers.hpp"
#include "baton/config/settings.hpp"
#include "baton/http/router.hpp"
#include "deployments.hpp"

namespace baton::supervisor {

/// The part of the control API that is about models and their replicas. Handlers hop to the control thread.
class ControlApi {
  public:
    struct Services {
        boost::asio::io_context& control;
        const config::SupervisorSettings& settings;
        Deployments& deployments;
    };
    explicit ControlApi(Services services) : services_(services) {}
    void add_routes(http::Router& router);

  private:
    using Exchange = std::shared_ptr<http::Exchange>;
    using Handler = std::function<void(const Exchange&, const http::Params&)>;
    void on_control(http::Router& router, const char* method, const char* pattern, http::Access access, Handler handler);
    void with_body(http::Router& router, const char* pattern, http::Router::Rule rule, ControlHandler handler);
    void launch(const Exchange& exchange, const std::string& body);
    [[nodiscard]] Json with_warnings(Json launched, const std::string& uid) const;
    void launch_version(const Exchange& exchange, const std::string& body);
    void list_models(const Exchange& exchange);
    void list_for_anthropic(const Exchange& exchange);
    void describe(const Exchange& exchange, const std::string& uid);
    void instances(const Exchange& exchange);
    void replicas(const Exchange& exchange, const std::string& uid);
    void add_replica(const Exchange& exchange, const std::string& uid, const std::string& body);
    void remove_replica(const Exchange& exchange, const std::string& uid, const std::string& replica);
    void progress(const Exchange& exchange, const std::string& uid);
    void events(const Exchange& exchange, const std::string& uid);

    Services services_;
};

}  // namespace baton::supervisor

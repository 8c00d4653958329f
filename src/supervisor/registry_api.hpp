#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>

#include "api_answers.hpp"
#include "baton/http/router.hpp"
#include "baton/registry/registry.hpp"
#include "model_pulls.hpp"

namespace baton::supervisor {

/// The part of the control API that is about models by name: registrations, engines, families, what is cached. Handlers hop
/// to the control thread.
class RegistryApi {
  public:
    struct Services {
        boost::asio::io_context& control;
        boost::asio::thread_pool& background;
        registry::Registry& registry;
        ModelPulls& pulls;
    };
    explicit RegistryApi(Services services) : services_(services) {}
    void add_routes(http::Router& router);

  private:
    using Exchange = std::shared_ptr<http::Exchange>;
    void on_control(http::Router& router, const char* method, const char* pattern, http::Router::Rule rule, ControlHandler handler);
    void list(const Exchange& exchange, const std::string& type);
    void describe(const Exchange& exchange, const std::string& type, const std::string& name);
    void add(const Exchange& exchange, const std::string& type, const std::string& body);
    void remove(const Exchange& exchange, const std::string& type, const std::string& name);
    void engines(const Exchange& exchange, const std::string& path);
    void cached(const Exchange& exchange);
    /// Looks at this host's cache on another thread, then calls back on the control thread.
    void with_cache(std::function<void(const registry::Registry::IsCached&)> then);

    Services services_;
};

}  // namespace baton::supervisor

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "baton/http/server.hpp"

namespace baton::supervisor {

/// An exchange that hands everything on to a client's. One that translates answers overrides its part of it.
class ForwardingExchange : public http::Exchange {
  public:
    explicit ForwardingExchange(std::shared_ptr<http::Exchange> client) : client_(std::move(client)) {}

    [[nodiscard]] const http::Request& request() const override { return client_->request(); }
    [[nodiscard]] std::string take_body() override { return {}; }  // whoever translates has taken it
    void respond(int status, std::string body, http::Headers headers, std::string_view content_type) override {
        client_->respond(status, std::move(body), std::move(headers), content_type);
    }
    bool begin_stream(http::StreamStart start) override { return client_->begin_stream(std::move(start)); }
    bool write(std::string bytes) override { return client_->write(std::move(bytes)); }
    void end() override { client_->end(); }
    void fail() override { client_->fail(); }
    void on_disconnect(std::function<void()> callback) override { client_->on_disconnect(std::move(callback)); }
    [[nodiscard]] bool client_gone() const override { return client_->client_gone(); }
    [[nodiscard]] bool answered() const override { return client_->answered(); }
    [[nodiscard]] size_t unsent_bytes() const override { return client_->unsent_bytes(); }
    void hold(std::shared_ptr<void> token) override { client_->hold(std::move(token)); }

  protected:
    [[nodiscard]] http::Exchange& client() { return *client_; }

  private:
    std::shared_ptr<http::Exchange> client_;
};

}  // namespace baton::supervisor

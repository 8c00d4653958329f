#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "baton/http/client.hpp"
#include "baton/http/server.hpp"
#include "unit/http/certificates.hpp"
#include "unit/http/raw_socket.hpp"

namespace baton::http::test {

/// A latch that tests wait on instead of sleeping.
class Event {
  public:
    void set() {
        const std::lock_guard lock(mutex_);
        set_ = true;
        changed_.notify_all();
    }
    bool wait() {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return set_; });
    }
    bool is_set() {
        const std::lock_guard lock(mutex_);
        return set_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool set_ = false;
};

/// Holds the exchange a handler got until the test takes it.
class Inbox {
  public:
    void put(std::shared_ptr<Exchange> exchange) {
        const std::lock_guard lock(mutex_);
        items_.push_back(std::move(exchange));
        changed_.notify_all();
    }
    std::shared_ptr<Exchange> take() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !items_.empty(); }))
            return nullptr;
        auto out = std::move(items_.front());
        items_.erase(items_.begin());
        return out;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::shared_ptr<Exchange>> items_;
};

inline Handler echo() {
    return [](std::shared_ptr<Exchange> exchange) {
        const Request& request = exchange->request();
        exchange->respond(200, request.method + " " + request.path + " " + request.body, {},
                          "text/plain");
    };
}

/// Every test of a server runs twice: without TLS and with it.
class ServerOver : public ::testing::TestWithParam<bool> {
  protected:
    void SetUp() override { over_tls() = GetParam(); }
    void TearDown() override { over_tls() = false; }
};

inline std::unique_ptr<Server> start(Handler handler, ServerOptions options = {}) {
    if (over_tls() && options.tls_certificate.empty()) {
        options.tls_certificate = any_certificate().certificate;
        options.tls_key = any_certificate().key;
    }
    auto server = Server::start(std::move(options), std::move(handler));
    EXPECT_TRUE(server.has_value());
    return std::move(*server);
}

/// How a Client reaches that server.
inline ClientOptions way_to(const Server& server) {
    ClientOptions out;
    out.base_url = (over_tls() ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(server.port());
    if (over_tls()) out.ca_file = any_certificate().certificate;
    return out;
}

inline std::string get(std::string_view path, std::string_view fields = "") {
    return "GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n" + std::string(fields) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body,
                        std::string_view fields = "") {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
           std::string(fields) + "\r\n" + std::string(body);
}

}  // namespace baton::http::test

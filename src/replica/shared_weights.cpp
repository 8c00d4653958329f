#include "shared_weights.hpp"

#include <boost/asio/post.hpp>
#include <chrono>

#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"

namespace baton::replica {
namespace {

}  // namespace

SharedWeights::SharedWeights(const config::ReplicaSettings& settings, const std::string& secret)
    : settings_(settings), secret_(secret), work_(io_.get_executor()) {}

SharedWeights::~SharedWeights() {
    if (!thread_.joinable()) return;
    boost::asio::post(io_, [this] {
        work_.reset();
        if (!link_) return io_.stop();
        link_->close();
        give_up_.expires_after(std::chrono::milliseconds(limits::kExitCloseMs));
        give_up_.async_wait([this](boost::system::error_code ec) {
            if (!ec) io_.stop();
        });
    });
    thread_.join();
}

SharedWeights::Image SharedWeights::acquire(const backend::WeightImage& image, const Fill& fill) {
    if (settings_.worker_unix.empty()) return {{}, false, "no worker"};
    const wire::WeightsOpen ask{{settings_.replica, settings_.epoch}, settings_.model_uid, image.key, image.bytes};
    net::connect(io_, {settings_.worker_unix, ""}, {"replica", settings_.model_uid + "/" + std::to_string(settings_.replica.value), secret_},
                 limits::kHandshakeTimeoutMs, [this, ask](Expected<std::shared_ptr<net::Connection>> c) { connected(std::move(c), ask); });
    thread_ = std::thread([this] { io_.run(); });
    std::unique_lock lock(mutex_);
    const auto limit = std::chrono::milliseconds(limits::kHandshakeTimeoutMs + 2 * wire::weights_fill_ms(image.bytes));
    if (!change_.wait_for(lock, limit, [&] { return grant_ || !lost_.empty(); })) return {{}, false, "the worker did not answer in time"};
    if (!grant_) return {{}, false, lost_};
    net::Connection::Received grant = std::move(*grant_);
    lock.unlock();
    return use(std::move(grant), image, fill);
}

SharedWeights::Image SharedWeights::use(net::Connection::Received received, const backend::WeightImage& image, const Fill& fill) {
    const auto& grant = std::get<wire::WeightsGrant>(received.message);
    if (grant.state == wire::WeightsState::kNone) return {{}, false, "the worker shares none"};
    if (received.fds.empty() || grant.bytes != image.bytes) return {{}, false, "the worker's answer makes no sense"};
    Image out{std::move(received.fds.front()), grant.state == wire::WeightsState::kFill, {}};
    if (!out.filled) return out;
    const auto done = fill(out.fd.get());
    boost::asio::post(io_, [this, ok = done.has_value()] {
        if (link_) link_->send(wire::WeightsFilled{ok});
    });
    if (!done) return {{}, false, done.error().message};
    return out;
}

// ---- thread_ ----------------------------------------------------------------------------------------------------------

void SharedWeights::connected(Expected<std::shared_ptr<net::Connection>> connection, const wire::WeightsOpen& ask) {
    if (!connection) return lost(connection.error().message);
    link_ = std::move(*connection);
    link_->start({[this](net::Connection::Received r) {
                      if (!std::holds_alternative<wire::WeightsGrant>(r.message)) return;
                      const std::lock_guard lock(mutex_);
                      if (!grant_) grant_ = std::move(r);
                      change_.notify_one();
                  },
                  [this](const Error& e) {
                      link_.reset();
                      give_up_.cancel();
                      log::debug("replica.weights_link_closed", {{"reason", e.message}});
                      lost(e.message);
                  }});
    link_->send(ask);
}

void SharedWeights::lost(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    lost_ = reason.empty() ? "link lost" : reason;
    change_.notify_one();
}

}  // namespace baton::replica

#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "baton/registry/registry.hpp"
#include "baton/wire/messages.hpp"
#include "workers.hpp"

namespace baton::supervisor {

/// Has the workers of a launch bring a model's files into their caches, then this host, which reads its tokenizer. Control
/// thread only; what takes time runs on the workers and on threads of its own.
class ModelPulls {
  public:
    struct Pulled {
        std::string path;                          ///< here
        std::map<std::string, std::string> paths;  ///< by worker
        bool described_only = false;               ///< no worker of the launch runs here: the weights are not here
    };
    using OnProgress = std::function<void(const std::string& worker, const wire::PullProgress&)>;
    using OnDone = std::function<void(Expected<Pulled>)>;

    ModelPulls(boost::asio::io_context& io, Workers& workers) : io_(io), workers_(workers) {}
    /// Cancels what runs here and waits for its threads: moments.
    ~ModelPulls();
    ModelPulls(const ModelPulls&) = delete;
    ModelPulls& operator=(const ModelPulls&) = delete;

    /// `done` once, unless cancelled: with where the files are, or the first worker's failure, which cancels the others.
    uint64_t start(const registry::Resolved& model, const std::set<std::string>& on_workers, OnProgress progress, OnDone done);
    void cancel(uint64_t pull);

    using Cached = std::vector<std::pair<std::string, wire::CachedSnapshot>>;  ///< by worker
    /// What the workers' caches hold (`only` "": all); who does not answer within seconds is left out.
    void list_cached(const std::string& only, std::function<void(Cached)> done);

    void on_message(const std::string& worker, const wire::Message& message);
    void worker_lost(const std::string& address);

  private:
    struct Pull {
        wire::PullModel what;
        std::set<std::string> waiting_for;
        Pulled pulled;
        OnProgress progress;
        OnDone done;
        std::stop_source stop;
    };
    struct Listing {
        std::set<std::string> waiting_for;
        Cached found;
        std::function<void(Cached)> done;
        std::shared_ptr<boost::asio::steady_timer> deadline;
    };
    void worker_done(const std::string& worker, const wire::PullDone& done);
    void worker_listed(const std::string& worker, const wire::CachedList& list);
    void pull_here(uint64_t id, Pull& pull);
    void finish(uint64_t id, Expected<Pulled> result);
    void finish_listing(uint64_t ask);

    boost::asio::io_context& io_;
    Workers& workers_;
    uint64_t next_ = 1;
    std::map<uint64_t, Pull> pulls_;
    std::map<uint64_t, Listing> listings_;
    std::map<uint64_t, std::pair<std::stop_source, std::thread>> threads_;  ///< of pulls here
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::supervisor

#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>

#include "baton/base/error.hpp"
#include "baton/wire/messages.hpp"

namespace baton::worker {

/// Downloads that the supervisor asks for, each on a thread of its own; what they say goes out through the io_context's
/// thread, which calls everything here. A download that is cancelled, or whose supervisor is gone, keeps its partial files.
class Pulls {
  public:
    using Send = std::function<void(const wire::Message&)>;
    Pulls(boost::asio::io_context& io, Send send);
    /// Cancels all and waits for their threads: moments.
    ~Pulls();
    Pulls(const Pulls&) = delete;
    Pulls& operator=(const Pulls&) = delete;

    void start(const wire::PullModel& ask);
    void cancel(uint64_t pull);
    void cancel_all();
    /// Answers with CachedList, from a thread too: a cache may be large.
    void list_cached(uint64_t ask);

  private:
    struct Job {
        std::stop_source stop;
        std::thread thread;
    };
    /// Runs `work` on a thread; its answer is sent unless we are gone by then. Where no thread can be had another one is.
    void run(uint64_t key, wire::Message without_thread, std::function<wire::Message(std::stop_token)> work);
    void post(std::function<void()> then);

    boost::asio::io_context& io_;
    Send send_;
    std::map<uint64_t, Job> jobs_;
    uint64_t next_key_ = 1;
    std::map<uint64_t, uint64_t> keys_;  ///< by pull
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::worker

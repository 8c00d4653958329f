#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace baton::http {

/// The connections of one I/O thread that have something to write. A step of the engine brings
/// tokens for many streams at once: the thread is woken for the first of them and finds the others
/// here. Belongs to its io_context's owner and is gone before it.
template <class Connection>
class FlushList {
  public:
    explicit FlushList(boost::asio::io_context& io) : io_(io) {}

    /// `connection`'s flush() will run on the I/O thread. Any thread.
    void add(std::weak_ptr<Connection> connection) {
        {
            const std::lock_guard lock(mutex_);
            waiting_.push_back(std::move(connection));
            if (std::exchange(posted_, true)) return;
        }
        boost::asio::post(io_, [this] { run(); });
    }

  private:
    /// Flushes all that wait, and those that come meanwhile for a few turns.
    void run() {
        constexpr int kTurns = 8;  // then reads and timers of the thread get theirs
        for (int turn = 0; turn < kTurns; ++turn) {
            {
                const std::lock_guard lock(mutex_);
                if (waiting_.empty()) {
                    posted_ = false;
                    return;
                }
                turn_.swap(waiting_);
            }
            for (const std::weak_ptr<Connection>& weak : turn_)
                if (const auto connection = weak.lock()) connection->flush_guarded();
            turn_.clear();
        }
        boost::asio::post(io_, [this] { run(); });
    }

    boost::asio::io_context& io_;
    std::mutex mutex_;
    std::vector<std::weak_ptr<Connection>> waiting_;  ///< guarded by mutex_
    bool posted_ = false;                             ///< run() will come; guarded by mutex_
    std::vector<std::weak_ptr<Connection>> turn_;     ///< I/O thread
};

}  // namespace baton::http

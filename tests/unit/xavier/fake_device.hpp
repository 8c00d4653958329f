#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/fd.hpp"

namespace baton::xavier::test {

/// What lies between the two ends of FakeDevice channels. An end that gives up is not noticed by the other one.
class FakeFabric {
  public:
    struct Move {
        int end;
        uint32_t buffer;
        size_t bytes;
        std::function<bool()> ready{};  ///< a send: what it follows is done
    };
    struct Pipe {
        bool opened[2] = {false, false};  ///< receiver, sender
        bool dead[2] = {false, false};
        std::vector<std::byte> staging[2][backend::DeviceLink::kBuffersMax];
        std::map<uint32_t, std::deque<Move>> waiting[2];  ///< by lane
        bool done[2][backend::DeviceLink::kBuffersMax] = {};
    };
    std::mutex mutex;
    std::map<uint64_t, std::shared_ptr<Pipe>> pipes;
    uint64_t ids = 0;
    bool stuck = false;    ///< nothing moves
    std::optional<uint32_t> stuck_lane;  ///< nothing of that lane moves
    bool no_pair = false;  ///< nobody gets ready
    bool no_open = false;
    uint64_t moved = 0;
    uint32_t buffers = 3, lanes = 1;
    size_t buffer_bytes = 64 * 1024;

    /// Moves what both ends have launched; call with the mutex.
    void match(Pipe& p) {
        for (uint32_t lane = 0; lane < lanes; ++lane) match(p, lane, p.waiting[0][lane], p.waiting[1][lane]);
    }

  private:
    void match(Pipe& p, uint32_t lane, std::deque<Move>& receives, std::deque<Move>& sends) {
        while (!stuck && stuck_lane != lane && !p.dead[0] && !p.dead[1] && !receives.empty() && !sends.empty()) {
            const Move r = receives.front(), s = sends.front();
            if (s.ready && !s.ready()) return;
            EXPECT_EQ(r.bytes, s.bytes);
            std::memcpy(p.staging[0][r.buffer].data(), p.staging[1][s.buffer].data(), s.bytes);
            p.done[0][r.buffer] = p.done[1][s.buffer] = true;
            receives.pop_front();
            sends.pop_front();
            ++moved;
        }
    }
};

class FakeDevice;
class FakeLink final : public backend::DeviceLink {
  public:
    FakeLink(FakeFabric& fabric, FakeDevice& device, uint64_t id, bool sender) : fabric_(fabric), device_(device), end_(sender ? 1 : 0) {
        const std::lock_guard lock(fabric_.mutex);
        auto& p = fabric_.pipes[id];
        if (!p) p = std::make_shared<FakeFabric::Pipe>();
        pipe_ = p;
        pipe_->opened[end_] = true;
        for (uint32_t i = 0; i < fabric.buffers; ++i) pipe_->staging[end_][i].resize(fabric.buffer_bytes);
    }
    ~FakeLink() override { FakeLink::give_up("closed"); }
    State state() override {
        const std::lock_guard lock(fabric_.mutex);
        if (failed_) return State::kFailed;
        return pipe_->opened[0] && pipe_->opened[1] && !fabric_.no_pair ? State::kReady : State::kPairing;
    }
    std::string reason() override { return reason_; }
    uint32_t buffers() const override { return fabric_.buffers; }
    uint32_t lanes() const override { return fabric_.lanes; }
    size_t buffer_bytes() const override { return fabric_.buffer_bytes; }
    Expected<uint64_t> gather(uint32_t buffer, const backend::PageCopy& copy) override;
    Expected<uint64_t> scatter(uint32_t buffer, const backend::PageCopy& copy) override;
    Expected<void> send(uint32_t buffer, size_t bytes, uint64_t after) override;
    Expected<void> receive(uint32_t buffer, size_t bytes) override { return launch(buffer, bytes, {}); }
    Expected<bool> done(uint32_t buffer) override {
        const std::lock_guard lock(fabric_.mutex);
        if (failed_) return fail(ErrorCode::kPeerLost, reason_);
        fabric_.match(*pipe_);
        return pipe_->done[end_][buffer];
    }
    void give_up(std::string_view reason) override {
        const std::lock_guard lock(fabric_.mutex);
        if (failed_) return;
        failed_ = true;
        reason_ = reason;
        pipe_->dead[end_] = true;
    }

  private:
    Expected<void> launch(uint32_t buffer, size_t bytes, std::function<bool()> ready) {
        const std::lock_guard lock(fabric_.mutex);
        if (failed_) return fail(ErrorCode::kPeerLost, reason_);
        pipe_->done[end_][buffer] = false;
        pipe_->waiting[end_][buffer % fabric_.lanes].push_back({end_, buffer, bytes, std::move(ready)});
        fabric_.match(*pipe_);
        return {};
    }
    FakeFabric& fabric_;
    FakeDevice& device_;
    const int end_;
    std::shared_ptr<FakeFabric::Pipe> pipe_;
    bool failed_ = false;
    std::string reason_;
};

/// A device whose memory is host memory. Copies run on a thread of its own, one after the other, some time after they were
/// queued: what they read is what is there then, and a ticket is done only afterwards.
class FakeDevice final : public backend::DevicePool {
  public:
    explicit FakeDevice(const kv::PoolLayout& layout, std::string gpu = "GPU-a", uint32_t delay_us_max = 0)
        : layout_(layout), gpu_(std::move(gpu)), delay_us_max_(delay_us_max) {
        auto fd = make_memfd("fake-device", layout.pool_bytes());
        fd_ = std::move(*fd);
        memory_ = std::move(*Mapping::map_fd(fd_.get(), layout.pool_bytes(), true));
        thread_ = std::thread([this] { run(); });
    }
    ~FakeDevice() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            paused_ = false;
        }
        changed_.notify_all();
        thread_.join();
    }

    /// The pool's bytes, as a kernel of its own process sees them.
    [[nodiscard]] std::span<std::byte> memory() { return memory_.mutable_bytes(); }

    // What a test does with it.
    void pause(bool paused) {
        const std::lock_guard lock(mutex_);
        paused_ = paused;
        changed_.notify_all();
    }
    /// From now on every call says that the device is lost, and nothing is copied.
    void lose() {
        const std::lock_guard lock(mutex_);
        lost_ = true;
        in_flight_.clear();
        changed_.notify_all();
    }
    void refuse_pulls(bool refuse) { refuse_pulls_ = refuse; }
    void refuse_pins(bool refuse) { refuse_pins_ = refuse; }
    void run_out_of_memory(bool out) { out_of_memory_ = out; }
    /// Waits until that many copies were queued in all.
    void wait_queued(uint64_t n) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return queued_ >= n; });
    }
    [[nodiscard]] uint64_t queued() {
        const std::lock_guard lock(mutex_);
        return queued_;
    }
    [[nodiscard]] size_t mapped() {
        const std::lock_guard lock(mutex_);
        return peers_.size();
    }
    [[nodiscard]] size_t pinned() {
        const std::lock_guard lock(mutex_);
        return pinned_.size();
    }

    // DevicePool.
    [[nodiscard]] const kv::PoolLayout& layout() const override { return layout_; }
    [[nodiscard]] std::string gpu() const override { return gpu_; }
    [[nodiscard]] std::vector<std::string> mappable_gpus() const override { return {"GPU-a", "GPU-b"}; }
    [[nodiscard]] Expected<std::vector<std::byte>> export_handle() const override {
        std::vector<std::byte> h(sizeof(int));
        const int fd = fd_.get();
        std::memcpy(h.data(), &fd, sizeof fd);
        return h;
    }
    Expected<uint32_t> map(std::span<const std::byte> handle, const kv::PoolLayout& layout) override {
        int fd = -1;
        if (handle.size() != sizeof fd) return fail(ErrorCode::kCorrupt, "handle");
        std::memcpy(&fd, handle.data(), sizeof fd);
        BATON_TRY_ASSIGN(Mapping m, Mapping::map_fd(fd, layout.pool_bytes(), true));
        const std::lock_guard lock(mutex_);
        peers_[next_peer_] = {std::move(m), layout};
        return next_peer_++;
    }
    void unmap(uint32_t peer) override {
        const std::lock_guard lock(mutex_);
        EXPECT_EQ(in_flight_.count(peer), 0u) << "unmapped under a copy";
        EXPECT_EQ(peers_.erase(peer), 1u);
    }
    Expected<uint64_t> pull(uint32_t peer, const backend::PageCopy& copy) override {
        if (refuse_pulls_) return fail(ErrorCode::kIo, "refused");
        const Copy c(copy);
        return queue(peer, [this, peer, c] {
            const Peer& from = peers_.at(peer);
            each_page(c, [&](size_t i, uint32_t layer, bool v, size_t) {
                std::memcpy(memory().data() + layout_.page_offset(layer, v, c.to[i]),
                            from.memory.bytes().data() + from.layout.page_offset(layer, v, c.from[i]), layout_.page_bytes());
            });
        });
    }
    Expected<uint64_t> to_host(const backend::PageCopy& copy, std::span<std::byte> host) override {
        if (out_of_memory_) throw std::bad_alloc();
        const Copy c(copy);
        EXPECT_EQ(host.size(), c.from.size() * c.layers * 2 * layout_.page_bytes());
        return queue(0, [this, c, host] {
            each_page(c, [&](size_t i, uint32_t layer, bool v, size_t at) {
                std::memcpy(host.data() + at, memory().data() + layout_.page_offset(layer, v, c.from[i]), layout_.page_bytes());
            });
        });
    }
    Expected<uint64_t> from_host(const backend::PageCopy& copy, std::span<const std::byte> host) override {
        const Copy c(copy);
        EXPECT_EQ(host.size(), c.to.size() * c.layers * 2 * layout_.page_bytes());
        return queue(0, [this, c, host] {
            each_page(c, [&](size_t i, uint32_t layer, bool v, size_t at) {
                std::memcpy(memory().data() + layout_.page_offset(layer, v, c.to[i]), host.data() + at, layout_.page_bytes());
            });
        });
    }
    bool pin(std::span<std::byte> memory) override {
        const std::lock_guard lock(mutex_);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
        if (refuse_pins_) return false;
        pinned_[memory.data()] = memory.size();
        return true;
    }
    void unpin(std::span<std::byte> memory) override {
        const std::lock_guard lock(mutex_);
        const auto it = pinned_.find(memory.data());
        EXPECT_TRUE(it != pinned_.end() && it->second == memory.size());
        pinned_.erase(memory.data());
    }
    [[nodiscard]] Expected<bool> done(uint64_t ticket) override {
        const std::lock_guard lock(mutex_);
        if (lost_) return fail(ErrorCode::kIo, "lost");
        EXPECT_LE(ticket, queued_);
        return ticket <= completed_;
    }
    void set_copy_options(const backend::CopyOptions&) override {}
    Expected<void> linkable() override {
        if (fabric == nullptr) return fail(ErrorCode::kUnavailable, "no fabric");
        return {};
    }
    Expected<std::vector<uint8_t>> make_link_id() override {
        BATON_TRY(linkable());
        const std::lock_guard lock(fabric->mutex);
        if (fabric->no_open) return fail(ErrorCode::kIo, "no open");
        std::vector<uint8_t> id(8);
        std::memcpy(id.data(), &++fabric->ids, 8);
        return id;
    }
    Expected<std::unique_ptr<backend::DeviceLink>> open_link(std::span<const uint8_t> id, bool sender) override {
        uint64_t n = 0;
        if (id.size() != sizeof n) return fail(ErrorCode::kCorrupt, "id");
        std::memcpy(&n, id.data(), sizeof n);
        return std::make_unique<FakeLink>(*fabric, *this, n, sender);
    }
    FakeFabric* fabric = nullptr;  ///< set before the transfer thread starts

    /// As to_host and from_host, for memory that `keep` owns.
    Expected<uint64_t> move(const backend::PageCopy& copy, std::byte* staging, bool out, std::shared_ptr<void> keep) {
        const Copy c(copy);
        return queue(0, [this, c, staging, out, keep] {
            each_page(c, [&](size_t i, uint32_t layer, bool v, size_t at) {
                std::byte* page = memory().data() + layout_.page_offset(layer, v, out ? c.from[i] : c.to[i]);
                std::memcpy(out ? staging + at : page, out ? page : staging + at, layout_.page_bytes());
            });
        });
    }

  private:
    struct Peer {
        Mapping memory;
        kv::PoolLayout layout;
    };
    struct Copy {
        explicit Copy(const backend::PageCopy& c)
            : first_layer(c.first_layer), layers(c.layers), from(c.from.begin(), c.from.end()), to(c.to.begin(), c.to.end()) {}
        uint32_t first_layer, layers;
        std::vector<uint32_t> from, to;
    };
    template <class Body>
    void each_page(const Copy& c, Body body) const {
        size_t at = 0;
        for (size_t i = 0; i < std::max(c.from.size(), c.to.size()); ++i)
            for (uint32_t layer = c.first_layer; layer < c.first_layer + c.layers; ++layer)
                for (const bool v : {false, true}) {
                    body(i, layer, v, at);
                    at += layout_.page_bytes();
                }
    }
    Expected<uint64_t> queue(uint32_t peer, std::function<void()> body) {
        const std::lock_guard lock(mutex_);
        if (lost_) return fail(ErrorCode::kIo, "lost");
        if (peer != 0) {
            EXPECT_TRUE(peers_.contains(peer));
            in_flight_.insert(peer);
        }
        work_.push_back({peer, std::move(body)});
        changed_.notify_all();
        return ++queued_;
    }
    void run() {
        std::mt19937 rng(1);
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || (!work_.empty() && !paused_ && !lost_); });
            if (work_.empty() || lost_) {
                if (stopping_) return;
                continue;
            }
            auto [peer, body] = std::move(work_.front());
            work_.pop_front();
            lock.unlock();
            if (delay_us_max_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % delay_us_max_));
            body();
            lock.lock();
            if (const auto it = in_flight_.find(peer); it != in_flight_.end()) in_flight_.erase(it);
            ++completed_;
            changed_.notify_all();
        }
    }

    const kv::PoolLayout layout_;
    const std::string gpu_;
    const uint32_t delay_us_max_;
    UniqueFd fd_;
    Mapping memory_;
    std::atomic<bool> refuse_pulls_{false}, refuse_pins_{false}, out_of_memory_{false};

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint32_t, Peer> peers_;
    uint32_t next_peer_ = 1;
    std::multiset<uint32_t> in_flight_;
    std::map<std::byte*, size_t> pinned_;
    std::deque<std::pair<uint32_t, std::function<void()>>> work_;
    uint64_t queued_ = 0, completed_ = 0;
    bool paused_ = false, lost_ = false, stopping_ = false;
    std::thread thread_;
};

inline Expected<uint64_t> FakeLink::gather(uint32_t buffer, const backend::PageCopy& copy) {
    return device_.move(copy, pipe_->staging[end_][buffer].data(), true, pipe_);
}
inline Expected<void> FakeLink::send(uint32_t buffer, size_t bytes, uint64_t after) {
    if (after == 0) return launch(buffer, bytes, {});
    return launch(buffer, bytes, [this, after] { return device_.done(after).value_or(false); });
}
inline Expected<uint64_t> FakeLink::scatter(uint32_t buffer, const backend::PageCopy& copy) {
    return device_.move(copy, pipe_->staging[end_][buffer].data(), false, pipe_);
}

}  // namespace baton::xavier::test

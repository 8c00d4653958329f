#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <thread>
#include <variant>

#include "baton/base/check.hpp"
#include "baton/base/log.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/channels.hpp"
#include "xavier/doorbell.hpp"
#include "xavier/layout.hpp"
#include "xavier/own_pool.hpp"
#include "xavier/pool_file.hpp"
#include "xavier/pull_server.hpp"
#include "xavier/puller.hpp"
#include "xavier/store_copier.hpp"

namespace baton::xavier {
namespace {

/// Extents that arrived and wait to be copied; a peer that sends more has its pull failed.
constexpr size_t kArrivedBytesMax = 256u * 1024 * 1024;
constexpr size_t kCommandsMax = 1u << 16;
constexpr int kNice = -10;
/// A thread that watches a device sleeps for microseconds: the kernel must not lengthen that.
constexpr unsigned long kTimerSlackNs = 1'000;
/// Nothing depends on it: a bound for the sleep of an idle thread.
constexpr int64_t kIdleWaitUs = 1'000'000;

struct RemoveSource { wire::ReplicaTarget peer; };
struct DropRequester { wire::ReplicaTarget peer; };
struct Request { wire::ReplicaTarget peer; wire::PullRequest request; std::shared_ptr<net::Connection> link; };
struct Arrived { wire::ReplicaTarget peer; wire::ExtentHeader header; std::vector<std::byte> bytes; };
struct AddChannel { wire::ReplicaTarget peer; std::shared_ptr<net::Connection> link; bool sender; };
struct ChannelMessage { wire::ReplicaTarget peer; wire::Message message; };
struct Plant { TransferThread::Faults faults; };
struct Checksums { std::vector<BlockId> blocks; std::shared_ptr<std::promise<Expected<std::vector<uint64_t>>>> answer; };
struct Stop {};
using Command = std::variant<Source, RemoveSource, pd::StartPull, pd::CancelPull, pd::VerifyPull, Arrived, Request,
                             DropRequester, StoreMap, pd::StoreCopy, AddChannel, ChannelMessage, Plant,
                             Checksums, Stop>;

template <class... F>
struct Overload : F... {
    using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

class Thread final : public TransferThread {
  public:
    Thread(PoolFile& file, backend::DevicePool* device, Callbacks callbacks)
        : own_(file, device),
          callbacks_(std::move(callbacks)),
          puller_(own_, callbacks_, faults_),
          channels_(own_, puller_),
          server_(own_, channels_, faults_),
          copier_(own_, callbacks_, [this] { ring(&bell_); }) {
        thread_ = std::thread([this] { run(); });
        ::pthread_setname_np(thread_.native_handle(), "baton-transfer");
    }
    ~Thread() override {
        give(Stop{});
        thread_.join();
    }

    Expected<void> add_source(wire::ReplicaTarget peer, const kv::PoolLayout& layout, uint32_t progress_slots,
                              std::optional<UniqueFd> map, std::shared_ptr<net::Connection> link) override {
        BATON_TRY(check_layout(layout));
        if (!own_.layout().pages_compatible(layout)) return fail(ErrorCode::kUnsupported, "the peer's KV pages do not match");
        Source source{peer, layout, std::nullopt, 0, std::move(link)};
        if (map) {
            BATON_TRY_ASSIGN(source.view, PoolView::map(std::move(*map), layout, progress_slots));
            if (own_.device() != nullptr || source.view->words_only())
                return fail(ErrorCode::kUnsupported, "mover shm needs both pools in host memory");
        } else if (!source.link) {
            return fail(ErrorCode::kInvalidArgument, "a source needs a mapped pool or a link");
        }
        give(std::move(source));
        return {};
    }
    Expected<void> add_device_source(wire::ReplicaTarget peer, const kv::PoolLayout& layout, uint32_t progress_slots, UniqueFd words,
                                     std::span<const std::byte> handle) override {
        BATON_TRY(check_layout(layout));
        if (!own_.layout().pages_compatible(layout)) return fail(ErrorCode::kUnsupported, "the peer's KV pages do not match");
        if (own_.device() == nullptr) return fail(ErrorCode::kUnsupported, "mover cuda_ipc needs both pools on GPUs");
        Source source{peer, layout, std::nullopt};
        BATON_TRY_ASSIGN(source.view, PoolView::map(std::move(words), layout, progress_slots));
        BATON_TRY_ASSIGN(source.device_peer, own_.device()->map(handle, layout));
        give(std::move(source));
        return {};
    }
    void remove_source(wire::ReplicaTarget peer) override { give(RemoveSource{peer}); }
    void start_pull(const pd::StartPull& pull) override { give(pull); }
    void cancel_pull(uint64_t pull) override { give(pd::CancelPull{pull}); }
    void verify_pull(const pd::VerifyPull& verify) override { give(verify); }
    void on_extent(wire::ReplicaTarget peer, wire::ExtentHeader header, std::vector<std::byte> bytes) override {
        if (arrived_bytes_.fetch_add(bytes.size()) + bytes.size() + puller_.held_bytes() > kArrivedBytesMax) {
            arrived_bytes_ -= bytes.size();
            bytes.clear();
            header.failed = true;
        }
        give(Arrived{peer, header, std::move(bytes)});
    }
    void on_pull_request(wire::ReplicaTarget peer, wire::PullRequest request, std::shared_ptr<net::Connection> link) override {
        const uint64_t pull = request.pull;
        if (give(Request{peer, std::move(request), link}, kCommandsMax)) return;
        wire::ExtentHeader refusal;
        refusal.pull = pull;
        refusal.last = refusal.failed = true;
        link->send(refusal);
    }
    void add_channel(wire::ReplicaTarget peer, std::shared_ptr<net::Connection> link, bool sender) override {
        give(AddChannel{peer, std::move(link), sender});
    }
    void on_channel_message(wire::ReplicaTarget peer, wire::Message message) override {
        give(ChannelMessage{peer, std::move(message)}, kCommandsMax);
    }
    void drop_requester(wire::ReplicaTarget peer) override { give(DropRequester{peer}); }
    Expected<void> set_store(UniqueFd fd, uint32_t slots, uint64_t slot_bytes) override {
        BATON_TRY_ASSIGN(StoreMap store, StoreMap::open(std::move(fd), slots, slot_bytes, own_.layout()));
        give(std::move(store));
        return {};
    }
    void store_copy(const pd::StoreCopy& copy) override { give(copy); }
    Expected<std::vector<uint64_t>> checksums(std::span<const BlockId> blocks) override {
        for (const BlockId b : blocks)
            if (b >= own_.layout().blocks) return fail(ErrorCode::kInvalidArgument, "no such block");
        auto answer = std::make_shared<std::promise<Expected<std::vector<uint64_t>>>>();
        auto future = answer->get_future();
        give(Checksums{{blocks.begin(), blocks.end()}, std::move(answer)});
        return future.get();
    }
    void plant(Faults faults) override { give(Plant{std::move(faults)}); }

  private:
    /// Queues a command and wakes the thread; false when `queue_max` are waiting.
    bool give(Command command, size_t queue_max = SIZE_MAX) {
        {
            const std::lock_guard lock(mutex_);
            if (commands_.size() >= queue_max) return false;
            commands_.push_back(std::move(command));
        }
        ring(&bell_);
        return true;
    }

    void run() {
        // On busy cores the copies must not queue behind the compute they are to overlap with: there is little to do, but
        // it is waited for. Where the system forbids it (no privilege) the thread runs like any other.
        (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
        if (own_.device() != nullptr) (void)::prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
        std::vector<WaitWord> words;
        while (!stopped_) {
            // The words are read before the work is looked for: a ring in between ends the wait at once.
            words.assign(1, {&bell_, read_doorbell(&bell_)});
            puller_.add_doorbells(words);
            server_.add_doorbells(words);
            const bool handled = handle_commands();
            if (work() || handled) continue;
            const int64_t us = wait_us();
            if (us > 0) waiter_.wait(words, us);
        }
        puller_.fail_all("cancelled");
        copier_.fail_all();
    }

    bool work() {
        const TimeMs now = steady_now();
        bool worked = false;
        guarded([&] { worked = puller_.step(now); });
        guarded([&] { worked = channels_.step(now) || worked; });
        guarded([&] { worked = server_.step(now) || worked; });
        if (!worked) guarded([&] { worked = copier_.step(steady_now_us()); });
        return worked;
    }

    /// Memory may run out in the middle of anything: what was under way fails, the thread stays.
    template <class Body>
    void guarded(Body&& body) {
        try {
            body();
        } catch (const std::exception& e) {
            log::error("xavier.transfer_failed", {{"what", e.what()}});
            puller_.fail_all("internal");
            copier_.fail_all();
        }
    }

    [[nodiscard]] int64_t wait_us() {
        const int64_t poll_us = std::min({puller_.poll_us(), channels_.poll_us(), server_.poll_us()});
        if (poll_us == 0) return 0;
        const TimeMs now = steady_now();
        const TimeMs next = std::min({puller_.next_look(now), channels_.next_look(now), server_.next_look(now)});
        const int64_t pulls_us = std::clamp<int64_t>(next - now, 0, kIdleWaitUs / 1000) * 1000;
        return std::min({pulls_us, copier_.idle_us(steady_now_us()), poll_us});
    }

    bool handle_commands() {
        std::vector<Command> commands;
        {
            const std::lock_guard lock(mutex_);
            commands.swap(commands_);
        }
        for (Command& c : commands) {
            guarded([&] { handle(c); });
            // A stream of extents must not keep the others from their turn.
            if (std::holds_alternative<Arrived>(c) && commands.size() > 1) work();
        }
        return !commands.empty();
    }

    void handle(Command& command) {
        std::visit(Overload{
                       [&](Source& c) { puller_.add_source(std::move(c)); },
                       [&](RemoveSource& c) {
                           puller_.remove_source(c.peer);
                           channels_.remove(c.peer);
                       },
                       [&](pd::StartPull& c) {
                           channels_.expect(c.peer);
                           own_.file().will_use(c.target_blocks);
                           puller_.start(std::move(c), steady_now());
                       },
                       [&](pd::CancelPull& c) { puller_.cancel(c.pull); },
                       [&](pd::VerifyPull& c) { verify(c); },
                       [&](Arrived& c) {
                           arrived_bytes_ -= c.bytes.size();
                           puller_.on_extent(c.peer, c.header, std::move(c.bytes), steady_now());
                       },
                       [&](Request& c) {
                           channels_.expect(c.peer);
                           server_.request(c.peer, std::move(c.request), std::move(c.link), steady_now());
                       },
                       [&](DropRequester& c) {
                           server_.drop(c.peer);
                           channels_.remove(c.peer);
                       },
                       [&](AddChannel& c) { add_channel_now(c); },
                       [&](ChannelMessage& c) { channels_.on_message(c.peer, c.message, steady_now()); },
                       [&](StoreMap& c) { copier_.set_store(std::move(c)); },
                       [&](pd::StoreCopy& c) { copier_.start(std::move(c)); },
                       [&](Plant& c) { faults_ = c.faults; },
                       [&](Checksums& c) { answer(c); },
                       [&](Stop&) { stopped_ = true; },
                   },
                   command);
    }

    void add_channel_now(AddChannel& c) {
        if (own_.device() != nullptr) channels_.add(c.peer, std::move(c.link), c.sender, steady_now());
    }

    /// Who asked is answered whatever happens.
    void answer(Checksums& c) {
        try {
            c.answer->set_value(checksums_now(c.blocks));
        } catch (const std::bad_alloc&) {
            c.answer->set_value(fail(ErrorCode::kInternal, "out of memory"));
        }
    }

    /// Waits for the device where the pool is on one: a test mode.
    Expected<std::vector<uint64_t>> checksums_now(std::span<const BlockId> blocks) {
        std::vector<uint64_t> sums;
        for (const BlockId b : blocks) {
            BATON_TRY_ASSIGN(const uint64_t sum, own_.checksum(b));
            sums.push_back(sum);
        }
        return sums;
    }

    void verify(const pd::VerifyPull& v) {
        bool equal = std::all_of(v.blocks.begin(), v.blocks.end(), [&](BlockId b) { return b < own_.layout().blocks; });
        if (equal) {
            const auto sums = checksums_now(v.blocks);
            equal = sums && *sums == v.checksums;
        }
        if (callbacks_.pull_verified) callbacks_.pull_verified(v.pull, equal);
    }

    OwnPool own_;
    const Callbacks callbacks_;
    Faults faults_;
    Puller puller_;
    Channels channels_;
    PullServer server_;
    StoreCopier copier_;
    DoorbellWaiter waiter_;
    bool stopped_ = false;

    std::mutex mutex_;
    std::vector<Command> commands_;
    std::atomic<size_t> arrived_bytes_{0};
    alignas(64) uint32_t bell_ = 0;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<TransferThread> TransferThread::start(SharedPool& own, Callbacks callbacks) {
    auto* file = dynamic_cast<PoolFile*>(&own);
    BATON_CHECK(file != nullptr && !own.pool().empty());  // SharedPool::create() makes no other
    return std::make_unique<Thread>(*file, nullptr, std::move(callbacks));
}

std::unique_ptr<TransferThread> TransferThread::start(SharedPool& words, backend::DevicePool& device, Callbacks callbacks) {
    auto* file = dynamic_cast<PoolFile*>(&words);
    BATON_CHECK(file != nullptr && words.pool().empty() && words.layout() == device.layout());
    return std::make_unique<Thread>(*file, &device, std::move(callbacks));
}

}  // namespace baton::xavier

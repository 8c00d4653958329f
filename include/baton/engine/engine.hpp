#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "baton/backend/backend.hpp"
#include "baton/grammar/constraints.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::engine {

/// The step loop of a replica on a thread of its own, the only owner of the core and the backend: drain the inbox → plan →
/// submit → collect → commit → publish actions. On a device step n + 1 is planned and submitted while step n runs. Sleeps
/// when there is nothing to do.
class Engine {
  public:
    struct Callbacks {
        /// Every action of the core except progress ones (done here), which it may take or leave. Engine thread; must not
        /// block.
        std::function<void(pd::Action&)> act;
        /// Engine thread, at most every `stats_every_ms` and only when something changed.
        std::function<void(const wire::ReplicaStats&)> stats;
        /// Engine thread, once: the device failed and all later steps fail at once; the process should end. May be null.
        std::function<void(const Error&)> failed{};
        /// Engine thread, where it may spin: the tokens of many sequences are about to come, probably before `until_us`
        /// (steady_now_us()), so that another thread can be ready to send them. May be null.
        std::function<void(int64_t until_us)> tokens_near{};
        /// Engine thread, verify mode: block_checksum() of each of these blocks. Null: none are put into a Commit.
        std::function<Expected<std::vector<uint64_t>>(std::span<const BlockId>)> checksums{};
    };
    struct Options {
        pd::CoreConfig core;
        bool verify_handoff = false;  ///< put checksums of the blocks into each Commit
        int64_t stats_every_ms = 100;
        /// How long, before and after a step's end is due, the thread looks at the device without a pause, in µs; 0: it naps always.
        int64_t spin_us = 0;
        grammar::Constraints* constraints = nullptr;  ///< of the sequences' answers; outlives the engine. Null: such sequences fail.
        bool log_steps = false;       ///< a line `engine.step` at debug for each step, with the host's time by part
    };
    using Task = std::function<void(pd::ReplicaCore& core, TimeMs now)>;

    /// `pool` is the memory `backend` computes in; it outlives the engine.
    static std::unique_ptr<Engine> start(Options options, std::unique_ptr<backend::Backend> backend,
                                         xavier::SharedPool& pool, Callbacks callbacks);
    /// The same on a device. `words` holds progress words and generations alone (SharedPool::create_words), and the backend
    /// was given its memory (share_words).
    static std::unique_ptr<Engine> start(Options options, std::unique_ptr<backend::DeviceBackend> backend,
                                         xavier::SharedPool& words, Callbacks callbacks);
    virtual ~Engine() = default;
    /// Ends the thread after the steps under way and joins it; what is posted later is dropped. Idempotent.
    virtual void stop() = 0;
    /// A hand-off will end soon: where the engine has nothing to run it reads the weights meanwhile (Backend::warm).
    /// Any thread.
    virtual void expect_work() = 0;
    /// Runs `task` on the engine thread before the next step. Any thread.
    virtual void post(Task task) = 0;
};

}  // namespace baton::engine

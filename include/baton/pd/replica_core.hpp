#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

/// The deciding part of a replica: scheduler, block pool, prefill side and decode side of the hand-off. It does no I/O
/// and reads no clock: time and messages come in as arguments, what to do goes out as actions. One thread (the engine
/// thread, or a simulation) calls it.
namespace baton::pd {

struct CoreConfig {
    ReplicaId self;
    Epoch epoch;
    Role role = Role::kHybrid;
    Digest model_identity{};        ///< seeds the block keys, with the page format
    uint32_t block_tokens = 16;
    uint32_t blocks = 0;
    uint32_t max_model_len = 0;     ///< positions a sequence may have
    uint32_t max_running = 64;      ///< sequences in a step
    uint32_t step_tokens = 512;     ///< token budget of a step
    uint32_t waiting_max = 512;
    uint32_t progress_slots = 256;  ///< offers that may be open at once
    bool prefix_cache = true;
    bool snapshots = false;         ///< publish complete blocks, read them for recovering sequences
    bool snapshot_read_always = false;
    uint32_t snapshot_blocks_max = UINT32_MAX;  ///< blocks held at once until they are copied into the store; others are left out
    int64_t lease_ms = 3'000;       ///< of the snapshot store: what was copied from it later is void
    /// 1: the device samples by itself, so a sequence may be in a second plan while the token that this plan's row is of
    /// is not known yet (StepItem::pending). 0: a sequence is in one plan at a time.
    uint32_t steps_ahead = 0;
    /// Microseconds on the clock of `now`, for the times that are told (SeqStart, HandoffDone); decides nothing. Null: `now`.
    int64_t (*clock_us)() = nullptr;
};

/// Rows that a plan may have: `step_tokens`, and in any case one of each sequence and a block's worth of a prompt.
[[nodiscard]] uint32_t step_rows_max(const CoreConfig& config);

/// One sequence's part of a step.
struct StepItem {
    wire::SeqRef ref;
    uint32_t first_token = 0;  ///< index into StepPlan::tokens
    uint32_t tokens = 0;
    uint32_t position = 0;               ///< of the first token
    std::span<const BlockId> blocks;     ///< of the whole sequence so far; valid until the step is done
    bool sample = false;                 ///< sample after the last row
    bool constrained = false;            ///< the answer has a constraint
    const wire::Sequence* sequence = nullptr;  ///< for the sampler; lives until the step is done
    /// P: where to publish progress, and the positions this chunk completes. None: nobody pulls this sequence.
    std::optional<uint32_t> progress_slot;
    uint64_t handle = 0;  ///< the core's own name of the sequence; stays as it is
    uint32_t state = 0;   ///< row of the device's state of this sequence: < max_running, the same while it runs, reused after
    /// 1: the item's one row is of the token that an unfinished earlier step samples; its id in StepPlan::tokens is 0. Where
    /// that token ends the sequence, the row is void: on_step_done ignores what was sampled after it.
    uint32_t pending = 0;
};

struct StepPlan {
    std::vector<TokenId> tokens;
    std::vector<StepItem> items;
    [[nodiscard]] bool empty() const { return items.empty(); }
};

/// A token the engine sampled for the item of that index.
struct Sampled {
    uint32_t item = 0;
    wire::Token token;
    std::vector<uint64_t> block_checksums;  ///< verify mode, P: of each block of the item's sequence; else empty
    std::string_view failed{};  ///< why there is no token: the sequence ends with this as the reason; "": there is one
};

// ---- actions -----------------------------------------------------------------------------------------------------

struct ToSupervisor { wire::Message message; };
struct ToPeer { wire::ReplicaTarget peer; wire::Message message; };
struct ToStore { wire::Message message; };
/// P: `slot` now belongs to a new offer. The first `done_tokens` positions are complete in all layers already (prefix
/// hits, or chunks computed under an earlier offer): the slot's progress starts there. Before the Offer is sent.
struct OpenProgress {
    uint32_t slot = 0;
    OfferId offer;
    uint32_t tokens = 0;
    std::vector<BlockId> blocks;
    std::vector<Generation> generations;
    uint32_t done_tokens = 0;
};
/// P: the offer is over; late readers must see that.
struct CloseProgress { uint32_t slot; OfferId offer; };
/// D: copy these blocks as they get complete. Answer with on_pull_done exactly once, after which no byte is written any more.
struct StartPull {
    uint64_t pull = 0;
    wire::ReplicaTarget peer;
    OfferId offer;
    uint32_t progress_slot = 0;
    uint32_t tokens = 0;                 ///< positions offered in all
    uint32_t first_block = 0;            ///< blocks before this one are already here
    std::vector<uint32_t> source_blocks; ///< of the whole offer, in sequence order
    std::vector<Generation> source_generations;
    std::vector<BlockId> target_blocks;  ///< of the whole sequence, same order
    TimeMs deadline;
};
/// D: stop that pull soon; on_pull_done still comes.
struct CancelPull { uint64_t pull = 0; };
/// D (verify mode): compare what arrived with the sender's checksums; answer with on_pull_verified.
struct VerifyPull { uint64_t pull = 0; std::vector<BlockId> blocks; std::vector<uint64_t> checksums; };
/// Copy these blocks into the store's slots, or back. Answer with on_store_copied. The blocks are held until then.
struct StoreCopy { uint64_t copy = 0; bool to_store = true; std::vector<BlockId> blocks; std::vector<uint32_t> slots; };
/// P: these slots are in use again, for other content: readers elsewhere must see the new generations before any byte of
/// these blocks is written. Comes with the actions taken after plan_step, before the plan may run.
struct RaiseGenerations { std::vector<BlockId> blocks; std::vector<Generation> generations; };
/// Write a log line of this event of a hand-off: kv.staged with the tokens, kv.loaded with the mover, the bytes it moved and the
/// tokens that were here already, kv.fallback with the reason.
struct LogEvent { std::string_view event; std::string request_id; std::string detail; uint64_t tokens = 0, bytes = 0; };

using Action = std::variant<ToSupervisor, ToPeer, ToStore, OpenProgress, CloseProgress, StartPull, CancelPull, VerifyPull,
                            StoreCopy, LogEvent, RaiseGenerations>;

struct PullResult {
    uint64_t pull = 0;
    bool ok = false;
    std::string reason;   ///< where not ok: "generation", "checksum", "timeout", "peer_lost", "cancelled"
    uint64_t bytes = 0;
    std::string mover;
    int64_t total_us = 0;     ///< from the start of the pull to its end
    int64_t exposed_us = -1;  ///< from the moment P's last layer was seen to its end; -1: not known (tcp)
};

class ReplicaCore {
  public:
    explicit ReplicaCore(CoreConfig config);
    ~ReplicaCore();
    ReplicaCore(ReplicaCore&&) noexcept;
    ReplicaCore& operator=(ReplicaCore&&) noexcept;

    // Inputs. Messages of other kinds than this link carries, of stale attempts, epochs or offers are ignored.
    void on_supervisor(TimeMs now, const wire::Message& message);
    void on_peer(TimeMs now, wire::ReplicaTarget from, const wire::Message& message);
    void on_store(TimeMs now, const wire::Message& message);
    /// The hand-off link with a peer is usable, or is not any more.
    void on_peer_up(TimeMs now, wire::ReplicaTarget peer);
    void on_peer_down(TimeMs now, wire::ReplicaTarget peer);
    /// The worker's store is usable (slots > 0), or gone.
    void on_store_up(TimeMs now, bool up);
    /// The supervisor link broke: abort everything (nobody can receive it).
    void on_supervisor_lost(TimeMs now);
    void on_pull_done(TimeMs now, const PullResult& result);
    void on_pull_verified(TimeMs now, uint64_t pull, bool equal);
    void on_store_copied(TimeMs now, uint64_t copy, bool ok);
    /// Call at least every 100 ms: deadlines, leases.
    void on_tick(TimeMs now);

    // Steps.
    /// What to compute now; empty where there is nothing. The plan's blocks stay allotted until on_step_done. Carry out
    /// take_actions() before the plan runs. A second plan may be made before the first is done: it leaves out the
    /// sequences of the first, or goes on with them where steps_ahead is 1. `recycled` is a plan that is done; its memory is
    /// used again.
    [[nodiscard]] StepPlan plan_step(TimeMs now, StepPlan recycled = {});
    /// The step ran: KV of all rows is in the pool. Steps are done in the order they were planned in; `sampled` has one token per item with `sample`. In verify mode
    /// Sampled::block_checksums gives, for a P item that completed, the checksum of each of its blocks.
    void on_step_done(TimeMs now, const StepPlan& plan, std::span<const Sampled> sampled);
    /// The step failed: every sequence in it fails with `reason`.
    void on_step_failed(TimeMs now, const StepPlan& plan, std::string_view reason);
    /// This plan's step is about to be done: asks for the memory that on_step_done and the next plan_step will look at, so that it
    /// is there by then. Changes nothing.
    void fetch_for(const StepPlan& plan) const;

    /// What to do, in order. Call after every input and after plan_step.
    [[nodiscard]] std::vector<Action> take_actions();
    /// The same into `actions`, whose memory is used again.
    void take_actions(std::vector<Action>& actions);
    /// A batch that was taken as an action and sent; its memory is used again.
    void recycle(wire::TokenBatch batch);
    [[nodiscard]] wire::ReplicaStats stats() const;
    /// D: the KV of a sequence is on its way, so that a plan made a little later may hold one more.
    [[nodiscard]] bool expects_sequence() const;
    [[nodiscard]] bool idle() const;  ///< no sequence, offer or pull is held
    /// Generation of a block of the own pool, for readers of the pool's memory.
    [[nodiscard]] Generation generation(BlockId block) const;

    /// Checks its own invariants (no block owned twice, counts add up); the reason where one is broken. For tests.
    [[nodiscard]] std::optional<std::string> check_invariants() const;

    struct Faults {  ///< planted by tests that prove the simulation bites
        bool skip_generation_raise = false;
        bool lose_release = false;
        bool double_grant = false;
        bool free_under_step = false;  ///< blocks of an ended sequence are given back although a step still writes there
    };
    void plant(Faults faults);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace baton::pd

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baton/kv/block_pool.hpp"
#include "baton/pd/replica_core.hpp"

/// Private state of ReplicaCore. Bodies: replica_core.cpp (inputs, life of a leg),
/// replica_core_steps.cpp (admission, plans, preemption), replica_core_done.cpp (what a step
/// brought), replica_core_store.cpp (snapshot store client), replica_core_check.cpp (figures and
/// invariants), prefill_side.cpp and decode_side.cpp (the two sides of a hand-off).
namespace baton::pd {

/// Where a leg stands.
enum class Stage : uint8_t {
    kWaiting,    ///< in the queue; holds nothing
    kLookup,     ///< admitted; the store was asked for its prefix
    kLoading,    ///< blocks are being copied from the store
    kComputing,  ///< takes part in steps
    kStaged,     ///< P: KV complete, first token out; held for the decode replica
    kPulling,    ///< D: accepted, KV not complete yet
};

/// P's part of a hand-off. An offer is used once: each Retarget makes a new one.
struct Handout {
    wire::ReplicaTarget target;
    OfferId offer;      ///< the open one; 0: none
    uint32_t slot = 0;  ///< progress slot of the open one
    TimeMs sent_at;
    bool accepted = false;
    bool committed = false;
    bool retarget_after_step = false;
    std::vector<uint32_t> retired_slots;  ///< closed, but a step under way may still write to them
    std::vector<uint64_t> checksums;      ///< verify mode
};

/// D's part of a hand-off.
struct Takeover {
    wire::ReplicaTarget source;
    OfferId offer;
    uint32_t tokens = 0;       ///< positions offered
    uint32_t have_blocks = 0;  ///< found in the own cache
    uint64_t pull = 0;         ///< 0: nothing to pull
    bool pulling = false;      ///< the mover may still write
    bool cancelled = false;
    bool timed_out = false;
    bool pull_ok = false;
    bool committed = false;
    bool verifying = false;
    bool source_knows = false;  ///< the source needs no Release
    TimeMs commit_at;
    int64_t commit_us = 0;
    uint64_t bytes = 0;
    int64_t pull_us = 0, tail_us = -1;  ///< of PullResult
    std::string mover, reason;
    std::vector<uint64_t> checksums;
};

inline constexpr uint32_t kNoState = UINT32_MAX;

/// One attempt at one sequence on this replica.
struct alignas(64) Leg {
    // First what every step reads: few lines of memory.
    uint64_t handle = 0;
    Stage stage = Stage::kWaiting;
    bool dying = false;      ///< over; its blocks come back when nothing touches them any more
    bool reported = false;   ///< a token was sent
    bool preempted = false;
    bool constrained = false;  ///< as `sequence` says
    uint32_t in_flight = 0;  ///< plans that it is part of and that are not done
    uint32_t ahead = 0;      ///< rows of it in those plans
    uint32_t pending = 0;    ///< tokens that those plans sample for it
    uint32_t state = kNoState;  ///< row of the device's state, from its first plan on
    uint32_t computed = 0;   ///< positions whose KV is in `blocks`
    uint32_t published = 0;  ///< blocks given to the prefix cache
    uint32_t snapped = 0;    ///< blocks offered to the snapshot store
    uint32_t cached_tokens = 0;
    uint32_t prompt = 0;     ///< ids of `tokens` that are not emitted
    uint32_t ends_at = 0;    ///< ids with which max_tokens or the context ends it
    uint32_t stops_from = 0; ///< ids with which stop ids begin to count
    uint64_t stops = 0;      ///< bit id % 64 for each stop id: no other id can be one
    wire::SeqRef ref;        ///< of `sequence`
    std::unique_ptr<Handout> handout;
    std::vector<TokenId> tokens;  ///< prompt, then emitted
    std::vector<BlockId> blocks;  ///< one reference each
    bool store_tried = false;
    wire::Sequence sequence;
    std::vector<Digest> keys;     ///< of complete blocks, as far as needed yet
    TimeMs deadline;
    int64_t arrived_us = 0;
    int64_t begun_us = -1;   ///< when its first step was planned; -1: none yet, or its prompt was computed elsewhere
    uint64_t lease_ask = 0;  ///< open StoreLease
    uint64_t copy = 0;       ///< open StoreCopy into `blocks`
    std::unique_ptr<Takeover> takeover;

    /// Asks for the memory that a step looks at, which the caches have mostly forgotten since the last one.
    void fetch() const {
        for (size_t at = 0; at < kFetched; at += 64) __builtin_prefetch(reinterpret_cast<const char*>(this) + at);
    }
    /// And, once that is there, for what it points to: where ids are added.
    void fetch_ids() const {
        __builtin_prefetch(tokens.data() + tokens.size(), 1);
        __builtin_prefetch(sequence.emitted.data() + sequence.emitted.size(), 1);
    }
    void fetch_blocks() const {
        if (!blocks.empty()) __builtin_prefetch(blocks.data() + blocks.size() - 1);
    }
    static constexpr size_t kFetched = 256;

    [[nodiscard]] uint32_t emitted() const { return size() - prompt; }
    [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(tokens.size()); }
    /// Positions whose KV is there once the plans under way are done.
    [[nodiscard]] uint32_t planned() const { return computed + ahead; }
    /// All but the row of the last token, emitted or pending, is in the cache or under way.
    [[nodiscard]] bool decoding() const {
        return emitted() + pending > 0 && !handout && planned() + 1 == size() + pending;
    }
};

/// Latest attempt known of each sequence, so that messages of older or ended attempts are ignored.
/// Bounded: forgets the sequences first seen.
class Fences {
  public:
    /// False where `ref` is older than what is known, or has ended.
    [[nodiscard]] bool open(wire::SeqRef ref) const;
    void note(wire::SeqRef ref, bool ended);
    void clear();

  private:
    struct Fence {
        uint32_t attempt = 0;
        bool ended = false;
    };
    std::unordered_map<SequenceId, Fence> fences_;
    std::deque<SequenceId> order_;
};

/// All legs by handle, dying ones included. A handle names one leg for ever; rising handles are rising ages.
class LegTable {
  public:
    Leg& add();
    [[nodiscard]] Leg* find(uint64_t handle) const;
    /// The leg that may be there, for Leg::fetch; or null.
    [[nodiscard]] const Leg* guess(uint64_t handle) const {
        const uint64_t slot = handle & ((uint64_t{1} << kSlotBits) - 1);
        return slot < slots_.size() ? slots_[slot].get() : nullptr;
    }
    void erase(uint64_t handle);
    [[nodiscard]] bool empty() const { return free_.size() == slots_.size(); }
    /// Oldest first.
    [[nodiscard]] std::vector<Leg*> all() const;

  private:
    static constexpr uint32_t kSlotBits = 20;
    std::vector<std::unique_ptr<Leg>> slots_;  ///< at the handle's low bits
    std::vector<uint32_t> free_;
    uint64_t next_serial_ = 1;
};

struct ReplicaCore::Impl {
    explicit Impl(CoreConfig config_in);

    struct PeerState {
        Epoch epoch;
        OfferId last_offer;  ///< offers come in rising order; one seen is never taken again
    };
    struct StoreAsk {
        uint64_t handle = 0;          ///< lease: the leg that asked
        std::vector<BlockId> blocks;  ///< allot: retained
        TimeMs deadline;
    };
    struct StoreTransfer {
        bool to_store = true;
        uint64_t handle = 0;
        uint64_t store_epoch = 0;
        std::vector<BlockId> blocks;  ///< to_store: retained
        std::vector<uint32_t> slots;
        TimeMs lease_end;             ///< from the store: what was read later may be another's
    };

    // Life of a leg.
    void submit(TimeMs now, const wire::Sequence& sequence,
                std::optional<wire::ReplicaTarget> target);
    [[nodiscard]] bool fence_in(wire::SeqRef ref);
    Leg& make_leg(TimeMs now, const wire::Sequence& sequence);
    [[nodiscard]] Leg* active(SequenceId id);
    void abort(wire::SeqRef ref);
    void enqueue(Leg& leg, bool first);
    void end(Leg& leg, std::string_view reason, bool attempt_over = true);
    void reap(Leg& leg);
    void fail(Leg& leg, ErrorCode code, std::string_view reason);
    void lose_supervisor();
    void tick(TimeMs now);
    void peer_down(wire::ReplicaTarget peer);
    void send_failed(wire::SeqRef ref, ErrorCode code, std::string_view reason);
    [[nodiscard]] bool linked(wire::ReplicaTarget peer) const;
    [[nodiscard]] int64_t us(TimeMs now) const { return config.clock_us ? config.clock_us() : now.ms * 1000; }

    // Steps.
    void plan(TimeMs now, StepPlan& plan);
    [[nodiscard]] bool plan_rows(TimeMs now, StepPlan& plan);
    void plan_prompts(TimeMs now, StepPlan& plan);
    [[nodiscard]] bool may_step(const Leg& leg) const;
    [[nodiscard]] bool next_token_is_last(const Leg& leg) const;
    void admit(TimeMs now);
    [[nodiscard]] bool try_admit(TimeMs now, Leg& leg);
    [[nodiscard]] Leg* next_waiting();
    [[nodiscard]] uint32_t blocks_for(uint32_t tokens) const;
    [[nodiscard]] uint32_t growth_reserve() const;
    [[nodiscard]] uint32_t active_count() const;
    enum class Growth : uint8_t { kDone, kPreempted, kWait };
    [[nodiscard]] Growth grow(Leg& leg);
    void reserve_blocks(Leg& leg) const;
    void preempt(Leg& leg);
    void add_item(TimeMs now, StepPlan& plan, Leg& leg, uint32_t rows);
    void ensure_keys(Leg& leg, uint32_t count);
    void raise_generations(const std::vector<BlockId>& blocks);
    void step_done(TimeMs now, const StepPlan& plan, std::span<const Sampled> sampled);
    [[nodiscard]] bool item_done(TimeMs now, Leg& leg, const StepItem& item, const Sampled* sampled,
                                 wire::TokenBatch& batch);
    void tell_start(TimeMs now, const Leg& leg, wire::TokenBatch& batch) const;
    void after_item(TimeMs now, Leg& leg, bool sampled, wire::Finish finish);
    void step_failed(const StepPlan& plan, std::string_view reason);
    void emit(Leg& leg, const wire::Token& token, wire::SeqTokens& out);
    [[nodiscard]] wire::Finish finish_of(const Leg& leg, TokenId next) const;
    void publish_complete(Leg& leg);
    void leave_running(Leg& leg);

    // P.
    void open_offer(TimeMs now, Leg& leg);
    void close_offer(Leg& leg);
    void withdraw(Leg& leg, std::string_view reason);
    void commit(Leg& leg);
    void stage(Leg& leg);
    void target_busy(Leg& leg, bool unreachable);
    void retarget(TimeMs now, const wire::Retarget& m);
    void on_accept(wire::ReplicaTarget from, const wire::Accept& m);
    void on_busy(wire::ReplicaTarget from, const wire::Busy& m);
    void on_release(wire::ReplicaTarget from, const wire::Release& m);
    [[nodiscard]] Leg* offered(wire::ReplicaTarget to, OfferId offer);
    void free_retired_slots(Leg& leg);

    // D.
    void on_offer(TimeMs now, wire::ReplicaTarget from, const wire::Offer& m);
    [[nodiscard]] bool well_formed(const wire::Offer& m) const;
    [[nodiscard]] std::string_view refusal(const wire::Offer& m, uint32_t have) const;
    void accept(TimeMs now, wire::ReplicaTarget from, const wire::Offer& m,
                std::vector<BlockId> have);
    void on_commit(TimeMs now, wire::ReplicaTarget from, const wire::Commit& m);
    void on_withdraw(wire::ReplicaTarget from, const wire::Withdraw& m);
    void pull_done(TimeMs now, const PullResult& result);
    void pull_verified(TimeMs now, uint64_t pull, bool equal);
    void advance_takeover(TimeMs now, Leg& leg);
    void finish_load(TimeMs now, Leg& leg);
    void fall_back(Leg& leg, std::string_view reason);
    void start_decoding(Leg& leg);
    void drop_takeover(Leg& leg);
    [[nodiscard]] Leg* taking(wire::ReplicaTarget from, OfferId offer);

    // Store.
    [[nodiscard]] bool wants_lookup(const Leg& leg) const;
    void look_up(TimeMs now, Leg& leg, uint32_t cacheable);
    void add_snapshots(Leg& leg);
    [[nodiscard]] size_t snapshots_held() const;
    void flush_snapshots(TimeMs now);
    void on_slots(TimeMs now, const wire::StoreSlots& m);
    void on_leased(Leg& leg, const wire::StoreSlots& m, TimeMs asked);
    void on_allotted(StoreAsk ask, const wire::StoreSlots& m);
    void copied(TimeMs now, uint64_t copy, bool ok);
    void loaded_from_store(const StoreTransfer& transfer, bool ok);
    void store_lost();
    void expire_asks(TimeMs now);
    void drop_store(Leg& leg);

    // Figures and checks.
    [[nodiscard]] wire::ReplicaStats stats() const;
    [[nodiscard]] std::optional<std::string> check() const;
    [[nodiscard]] std::optional<std::string> check_references() const;
    [[nodiscard]] std::optional<std::string> check_lists() const;
    [[nodiscard]] std::optional<std::string> check_steps(const Leg& leg) const;
    [[nodiscard]] std::optional<std::string> check_states() const;
    [[nodiscard]] std::optional<std::string> check_slots() const;

    template <class M>
    void to_supervisor(M message) {
        actions.push_back(ToSupervisor{wire::Message(std::move(message))});
    }
    /// Sends on a link that is up; a message to a lost peer has no reader.
    template <class M>
    void to_peer(wire::ReplicaTarget peer, M message) {
        if (linked(peer)) actions.push_back(ToPeer{peer, wire::Message(std::move(message))});
    }
    template <class M>
    void to_store(M message) {
        if (store_up) actions.push_back(ToStore{wire::Message(std::move(message))});
    }

    CoreConfig config;
    uint32_t context =
        0;  ///< positions one sequence may have: what the model and the whole pool allow
    kv::BlockPool pool;
    Faults faults;
    Fences fences;
    bool draining = false;
    std::vector<Action> actions;

    LegTable legs;
    std::unordered_map<SequenceId, Leg*> by_id;               ///< not dying
    std::deque<Leg*> recovering, fresh;                       ///< the queue
    std::vector<Leg*> running;                                ///< admission order
    std::vector<uint32_t> free_states;                        ///< rows of the device's state
    uint32_t pulling = 0;                                     ///< legs in kPulling
    /// Head of the queue that did not fit, with the blocks to be had and the sequences active then.
    struct Blocked {
        uint64_t handle = 0;
        uint32_t available = 0, active = 0;
        friend bool operator==(const Blocked&, const Blocked&) = default;
    };
    Blocked blocked;

    std::unordered_map<ReplicaId, PeerState> peers;  ///< linked
    std::unordered_map<OfferId, Leg*> offers;        ///< P: open offers
    std::vector<uint32_t> free_slots;
    uint64_t next_offer = 1;
    std::map<std::pair<ReplicaId, OfferId>, Leg*> takeovers;  ///< D: legs in kPulling
    std::unordered_map<uint64_t, Leg*> pulls;
    uint64_t next_pull = 1;

    bool store_up = false;
    uint64_t store_epoch = 0;
    uint64_t next_ask = 1;  ///< odd: lease, even: allot
    std::unordered_map<uint64_t, StoreAsk> asks;
    std::unordered_map<uint64_t, StoreTransfer> transfers;
    uint64_t next_copy = 1;
    std::vector<BlockId> snapshot_blocks;  ///< to be offered to the store after this step, retained
    std::vector<Digest> snapshot_keys;

    // Scratch of step_done.
    struct After {
        Leg* leg = nullptr;
        bool sampled = false;
        wire::Finish finish = wire::Finish::kNone;
    };
    std::vector<After> after;
    wire::TokenBatch spare;  ///< one that was sent, for its memory
    size_t batch_used = 0;   ///< items of this step's batch that are filled
    std::vector<const Sampled*> sampled_of_item;
    void fetch_for_done(const StepPlan& plan, size_t item, const wire::TokenBatch& batch) const;
    void fetch_for(const StepPlan& plan) const;

    uint64_t prefill_tokens = 0, generated_tokens = 0, steps = 0, handoff_bytes = 0;
    std::array<uint64_t, wire::kStepSizeBounds.size() + 1> steps_by_size{};
    uint64_t step_sequences = 0, step_rows = 0, found_tokens = 0, received_tokens = 0;
    void count_step(const StepPlan& plan);
};

inline constexpr size_t kFetchAhead = 6;  ///< legs, in loops over those of a step: memory is asked for so far ahead
inline constexpr int64_t kOfferTimeoutMs = 2'000;
inline constexpr int64_t kStoreAskTimeoutMs = 500;
inline constexpr uint32_t kReserveTokens = 64;  ///< growth kept free for each running sequence
inline constexpr size_t kStoreTransfersMax = 64;

}  // namespace baton::pd

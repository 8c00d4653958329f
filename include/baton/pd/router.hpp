#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

/// The deciding part of a deployment on the supervisor: which replicas serve a sequence, what happens when one is lost,
/// when a sequence ends. No I/O, no clock; one strand (or a simulation) calls it.
namespace baton::pd {

struct RouterConfig {
    uint32_t waiting_max = 512;          ///< sequences in flight, all phases
    uint32_t recovery_tokens = 65'536;   ///< KV tokens being recomputed at once for recoveries
    int attempts_max = 8;                ///< tries at one sequence without a new token before it fails
    int64_t busy_retry_ms = 20;          ///< pause before a full ring of busy decode replicas is asked again
    int64_t replacement_wait_ms = 3'000;  ///< how long a sequence without a replica waits for one that is being started
};

enum class Phase : uint8_t { kQueued, kPrefill, kTransfer, kDecode };  ///< of a sequence, for abort counts
[[nodiscard]] const char* to_string(Phase phase);

// ---- actions ------------------------------------------------------------------------------------------------------
struct SendReplica { wire::ReplicaTarget to; wire::Message message; };
/// Where a sequence was and where its time went, as far as it is known (0, -1): the one place that timings of answers and
/// histograms of stages are made from.
struct Stages {
    ReplicaId prefill_replica;  ///< computed the prompt
    ReplicaId decode_replica;   ///< gave the newest token
    int64_t queue_us = -1;    ///< from submit() to the first step of the attempt that gave the first token; lost attempts count as waiting
    int64_t prefill_us = -1;  ///< from there to the first token, at the replica
    int64_t handoff_us = -1;  ///< what the hand-off took after the prefill: from P's last layer (where that is not seen, from Commit) until D had all
};
/// New tokens of a sequence, in order, each exactly once.
struct Deliver { SequenceId id; std::vector<wire::Token> tokens; uint32_t first_index = 0; Stages stages{}; };
/// The sequence is over. `finish` kNone: it failed with `error`. Exactly one a sequence.
struct End {
    SequenceId id;
    wire::Finish finish = wire::Finish::kNone;
    Error error;
    uint32_t cached_tokens = 0;
    std::vector<ReplicaId> served_by;
    Stages stages{};
};
/// A sequence is tried again; for the log. `attempt` is the new one's number.
struct Retried { SequenceId id; std::string request_id; uint32_t attempt = 0; std::string reason; };
using RouterAction = std::variant<SendReplica, Deliver, End, Retried>;

struct RouterStats {
    uint64_t ended_ok = 0, ended_error = 0, ended_aborted = 0;
    uint64_t aborts_by_phase[4]{};
    std::vector<std::pair<std::string, uint64_t>> handoffs_by_mover, handoff_bytes_by_mover, fallbacks_by_reason, failovers_by_reason;
    /// Sums of the pulls' times, and of their parts after P's last layer (or, where that is not seen, after Commit).
    std::vector<std::pair<std::string, uint64_t>> handoff_pull_us_by_mover, handoff_exposed_us_by_mover;
    uint32_t running = 0;  ///< has its first token
    uint32_t waiting = 0;  ///< accepted, no token yet
    uint32_t unsent = 0;   ///< of all: no replica has it
    uint32_t staged = 0;   ///< of all: its prefill is over, and it waits for a decode replica that is not busy
};

/// Rules. New sequences are sent at once, unless a recovery waits for its budget: then they queue behind it. A try ends
/// with an abort to every leg that may hold something, and the next one has a higher attempt number, which fences what
/// still comes of the old one. Tries after the first come ever more slowly (busy_retry_ms, doubled up to 500 ms), and a
/// new token starts the count anew. A hole in the tokens that stays for 2 s ends the try, and so does a hand-off of which
/// nothing is heard for 10 s.
class Router {
  public:
    explicit Router(RouterConfig config);
    ~Router();
    Router(const Router&) = delete;
    Router& operator=(const Router&) = delete;

    // Topology. A replica is routed to only between replica_up and replica_down of that epoch. Slots keep their place
    // in the ring when their process is replaced.
    /// Opens a ring slot; each id once.
    void add_replica(ReplicaId id, Role role);
    /// The slot's process is ready. An older process still in the slot is taken as lost.
    void replica_up(TimeMs now, wire::ReplicaTarget target);
    /// That process is lost: sequences that need it are tried again elsewhere, or end.
    void replica_down(TimeMs now, wire::ReplicaTarget target);
    /// Whether a process is about to come up in that slot, if it has none. A sequence that is tried again, and that no live
    /// replica can take, waits for it within replacement_wait_ms, and for its links. Say it before replica_down.
    void replica_expected(TimeMs now, ReplicaId id, bool expected);
    /// A draining replica gets nothing new. Telling the replica is the caller's part.
    void replica_draining(TimeMs now, wire::ReplicaTarget target, bool draining);
    /// What `a` says of its link with `b`. One end's word is enough; when both ends speak, both must say up. Pairs without
    /// a link are not picked; when none is left a decode replica runs the sequence alone (fallback "no_link").
    void link_state(TimeMs now, wire::ReplicaTarget a, wire::ReplicaTarget b, bool up);
    /// True when a new request could be served: a live hybrid, or a live P and D.
    [[nodiscard]] bool ready() const;

    /// Takes a sequence (ref.attempt and recovering are the router's to set). kUnavailable "Both prefill and decode
    /// replicas must be available" / kOverloaded otherwise, and then no End follows.
    [[nodiscard]] Expected<void> submit(TimeMs now, wire::Sequence sequence, TimeMs deadline);
    /// Ends a sequence with kAborted now and frees both roles. Unknown ids are ignored.
    void abort(TimeMs now, SequenceId id, std::string_view reason);
    /// A message from a replica; stale epochs and attempts are ignored.
    void on_message(TimeMs now, wire::ReplicaTarget from, const wire::Message& message);
    /// Call at least every 100 ms.
    void on_tick(TimeMs now);
    /// Terminate: every sequence ends with kUnavailable.
    void close(TimeMs now, std::string_view reason);

    /// What to do, in order. `recycled` is a list that was carried out; its memory is used again.
    [[nodiscard]] std::vector<RouterAction> take_actions(std::vector<RouterAction> recycled = {});
    [[nodiscard]] RouterStats stats() const;
    [[nodiscard]] std::optional<Phase> phase_of(SequenceId id) const;
    [[nodiscard]] size_t in_flight() const;
    [[nodiscard]] std::optional<std::string> check_invariants() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace baton::pd

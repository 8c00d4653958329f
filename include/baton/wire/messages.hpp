#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

/// Every message between baton's processes, once. Links: supervisor ↔ worker (S-W), supervisor ↔ replica (S-R),
/// replica ↔ replica (Xavier, P-D), replica ↔ worker (R-W). docs/XAVIER.md has the protocol.
namespace baton::wire {

#define BATON_FIELDS(...)                 \
    template <class V>                    \
    void fields(V& v) {                   \
        ::baton::wire::pass(v, __VA_ARGS__); \
    }
template <class V, class... F>
void pass(V& v, F&... f) {
    (v(f), ...);
}

// ---- values ------------------------------------------------------------------------------------------------------

/// What an answer's text must be (module grammar).
enum class ConstraintKind : uint8_t {
    kNone = 0,
    kJsonObject = 1,  ///< any JSON object; no text
    kJsonSchema = 2,  ///< `text` is a JSON schema
    kRegex = 3,       ///< the whole answer matches `text`
    kChoice = 4,      ///< `text` is a JSON array of strings; the answer is one of them
    kGrammar = 5,     ///< `text` is a grammar (docs/API.md, constrained decoding)
};
struct Constraint {
    ConstraintKind kind = ConstraintKind::kNone;
    std::string text;
    std::string after;    ///< the answer is free up to and with this text; "": constrained from its start
    std::string opening;  ///< with `after`: only an answer that begins with this text is free first; "": each is
    friend bool operator==(const Constraint&, const Constraint&) = default;
    BATON_FIELDS(kind, text, after, opening)
};

/// How a sequence is sampled. Penalties count prompt and emitted tokens as vLLM does (repetition: both; presence and
/// frequency: emitted only).
struct Sampling {
    float temperature = 1.0f;  ///< 0: greedy
    float top_p = 1.0f;
    int32_t top_k = 0;  ///< 0: off
    float min_p = 0.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    float repetition_penalty = 1.0f;
    uint64_t seed = 0;
    uint32_t max_tokens = 1;  ///< of the whole sequence, emitted ones included
    uint32_t min_tokens = 0;  ///< stop ids are masked before that many
    std::vector<TokenId> stop_ids;  ///< end the sequence (EOS among them unless ignored)
    std::vector<std::pair<TokenId, float>> logit_bias;
    int32_t top_logprobs = -1;  ///< -1: no logprobs wanted; 0…20
    Constraint constraint{};
    BATON_FIELDS(temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed,
                 max_tokens, min_tokens, stop_ids, logit_bias, top_logprobs, constraint)
};

/// One try at a sequence. A new attempt fences all messages of older ones.
struct SeqRef {
    SequenceId id;
    uint32_t attempt = 0;
    friend auto operator<=>(const SeqRef&, const SeqRef&) = default;
    BATON_FIELDS(id, attempt)
};

/// All there is to know of a sequence: emitted ids are facts and are never sampled again.
struct Sequence {
    SeqRef ref;
    std::string request_id;  ///< for logs
    std::vector<TokenId> prompt;
    std::vector<TokenId> emitted;
    Sampling sampling;
    int64_t time_left_ms = 0;
    bool recovering = false;  ///< look into the snapshot store, go ahead of new work
    BATON_FIELDS(ref, request_id, prompt, emitted, sampling, time_left_ms, recovering)
};

struct Token {
    TokenId id = 0;
    float logprob = 0.0f;                            ///< of the model before temperature; 0 unless wanted
    std::vector<std::pair<TokenId, float>> top;      ///< best first
    BATON_FIELDS(id, logprob, top)
};

enum class Finish : uint8_t { kNone = 0, kStop = 1, kLength = 2 };

struct ReplicaTarget {
    ReplicaId replica;
    Epoch epoch;
    friend bool operator==(const ReplicaTarget&, const ReplicaTarget&) = default;
    BATON_FIELDS(replica, epoch)
};

/// kv::PoolLayout on the wire.
struct Layout {
    uint8_t order = 0;
    uint8_t dtype = 0;
    uint32_t layers = 0, kv_heads = 0, head_dim = 0, block_tokens = 0, blocks = 0;
    std::string page_format;
    BATON_FIELDS(order, dtype, layers, kv_heads, head_dim, block_tokens, blocks, page_format)
};

// ---- any link ----------------------------------------------------------------------------------------------------

struct Heartbeat {
    uint64_t count = 0;
    BATON_FIELDS(count)
};
/// First message of a connecting process. `proof` is HMAC(secret, challenge ‖ kind ‖ name) where a secret is in use.
struct Hello {
    uint32_t version = 1;
    std::string kind;  ///< "worker", "replica", "peer"
    std::string name;
    std::string challenge;  ///< ours, for the other side's proof
    std::string proof;
    BATON_FIELDS(version, kind, name, challenge, proof)
};
struct Refused {
    uint8_t code = 0;  ///< ErrorCode
    std::string reason;
    BATON_FIELDS(code, reason)
};

// ---- supervisor → replica ----------------------------------------------------------------------------------------

/// Compute prompt and emitted tokens' KV, sample one token, hand over to `target`.
struct Prefill {
    Sequence sequence;
    ReplicaTarget target;
    BATON_FIELDS(sequence, target)
};
/// Compute and decode it all here (hybrid replicas; a decode replica when no prefill replica is left).
struct Run {
    Sequence sequence;
    BATON_FIELDS(sequence)
};
/// The target was busy or is gone: offer to this one instead.
struct Retarget {
    SeqRef ref;
    ReplicaTarget target;
    BATON_FIELDS(ref, target)
};
/// Stop this attempt and free all it holds. Idempotent.
struct Abort {
    SeqRef ref;
    BATON_FIELDS(ref)
};
/// Finish what runs, take nothing new.
struct Drain {
    bool on = true;
    BATON_FIELDS(on)
};
/// One peer to link with.
struct Peer {
    ReplicaTarget target;
    uint8_t role = 0;
    std::string host_id;
    std::string unix_path;    ///< where it listens on its host
    std::string tcp_address;  ///< host:port, "" if it does not listen there
    BATON_FIELDS(target, role, host_id, unix_path, tcp_address)
};
/// All live replicas of the deployment; what is missing has gone.
struct Peers {
    std::vector<Peer> peers;
    BATON_FIELDS(peers)
};

// ---- replica → supervisor ----------------------------------------------------------------------------------------

/// The model is loaded, the pool is there, the replica listens.
struct ReplicaReady {
    ReplicaTarget self;
    std::string host_id, unix_path, tcp_address;
    Layout layout;
    std::string engine;  ///< for logs and descriptions
    uint64_t memory_bytes = 0;
    uint32_t pid = 0;
    BATON_FIELDS(self, host_id, unix_path, tcp_address, layout, engine, memory_bytes, pid)
};
/// Which peers are linked, and by which mover; sent on every change.
struct LinkState {
    struct Item {
        ReplicaTarget peer;
        bool up = false;
        std::string mover;
        std::string reason;
        BATON_FIELDS(peer, up, mover, reason)
    };
    std::vector<Item> links;
    BATON_FIELDS(links)
};
/// Tokens of one sequence: `first_index` is the index in the sequence's emitted ids of the first of them.
struct SeqTokens {
    SeqRef ref;
    uint32_t first_index = 0;
    std::vector<Token> tokens;
    Finish finish = Finish::kNone;
    uint32_t cached_tokens = 0;  ///< with the first token: prompt tokens taken from the replica's own prefix cache
    BATON_FIELDS(ref, first_index, tokens, finish, cached_tokens)
};
/// How a sequence's first token came about; with the batch that brings it, from the replica that computed its prompt.
struct SeqStart {
    SeqRef ref;
    int64_t queue_us = 0;    ///< from its arrival at the replica to the first step that it was part of
    int64_t prefill_us = 0;  ///< from then to its first token
    BATON_FIELDS(ref, queue_us, prefill_us)
};
struct TokenBatch {
    std::vector<SeqTokens> items;
    std::vector<SeqStart> starts{};  ///< of some of the items' sequences
    BATON_FIELDS(items, starts)
};
/// P: the decode target has no room or no link; the KV waits here.
struct TargetBusy {
    SeqRef ref;
    ReplicaTarget target;
    bool unreachable = false;
    BATON_FIELDS(ref, target, unreachable)
};
/// D: the sequence's KV is here; P may go.
struct HandoffDone {
    SeqRef ref;
    uint64_t bytes = 0;         ///< moved
    uint32_t blocks_reused = 0; ///< already here
    std::string mover;
    int64_t exposed_us = 0;     ///< from Commit to loaded
    int64_t pull_us = 0;        ///< from the start of the pull to its end
    int64_t tail_us = -1;       ///< from P's last layer, as seen here, to the end of the pull; -1: not known
    BATON_FIELDS(ref, bytes, blocks_reused, mover, exposed_us, pull_us, tail_us)
};
/// This replica gave the attempt up; all it held is free. The router starts another or ends the sequence.
struct SequenceFailed {
    SeqRef ref;
    uint8_t code = 0;  ///< ErrorCode
    std::string reason;  ///< short constant word, e.g. "lease_expired", "peer_lost", "preempted", "queue_full"
    BATON_FIELDS(ref, code, reason)
};
/// D computed a sequence itself although a hand-off was meant.
struct Fallback {
    SeqRef ref;
    std::string reason;
    BATON_FIELDS(ref, reason)
};
/// Sequences of an engine step by upper bound; what is beyond the last bound is counted by itself.
inline constexpr std::array<uint32_t, 9> kStepSizeBounds{1, 2, 4, 8, 16, 32, 64, 128, 256};
/// Gauges and counters for /metrics, sent every second and on change of the block counts.
struct ReplicaStats {
    uint64_t prefill_tokens = 0, generated_tokens = 0;
    uint32_t blocks_free = 0, blocks_used = 0, blocks_cached = 0, blocks_offered = 0;
    uint32_t running = 0, waiting = 0, leases = 0;
    uint64_t steps = 0;
    uint64_t handoff_bytes = 0;
    uint64_t host_us = 0;  ///< time of the engine thread beside waiting and, on the CPU, computing
    std::vector<uint64_t> steps_by_size{};  ///< by kStepSizeBounds, each step once, and one more
    uint64_t step_sequences = 0, step_rows = 0;  ///< of all steps: sequences, and tokens that were computed for them
    uint64_t found_tokens = 0;     ///< whose KV was in the own cache, or in the host's store, when their sequence came
    uint64_t received_tokens = 0;  ///< whose KV a hand-off brought
    BATON_FIELDS(prefill_tokens, generated_tokens, blocks_free, blocks_used, blocks_cached, blocks_offered, running,
                 waiting, leases, steps, handoff_bytes, host_us, steps_by_size, step_sequences, step_rows, found_tokens, received_tokens)
};

// ---- Xavier: prefill replica (P) ↔ decode replica (D) -------------------------------------------------------------

/// D → P after Hello (D connects): what D is and can map. P answers with its own.
struct LinkHello {
    ReplicaTarget self;
    std::string host_id;
    Digest model{};
    Layout layout;
    bool wants_map = false;  ///< D asks for the shm mover; P passes its pool's descriptor with its answer
    bool verify = false;     ///< test mode: checksums end to end
    bool device = false;     ///< the pool lies on a GPU
    std::string gpu;         ///< its UUID
    std::vector<std::string> maps_gpus;  ///< UUIDs of GPUs whose memory this process can map
    std::vector<uint8_t> device_handle;  ///< P, mover cuda_ipc: what maps its pool (backend::DevicePool::export_handle)
    bool nccl = false;       ///< the mover nccl can be used here
    std::string nccl_reason; ///< where it cannot
    BATON_FIELDS(self, host_id, model, layout, wants_map, verify, device, gpu, maps_gpus, device_handle, nccl, nccl_reason)
};
/// P → D: this sequence's KV will be in these blocks.
struct Offer {
    OfferId offer;
    Sequence sequence;
    std::vector<Digest> keys;               ///< of each complete block
    std::vector<uint32_t> blocks;           ///< P's block slots, in sequence order, the partial one last
    std::vector<uint32_t> generations;      ///< of those slots
    uint32_t tokens = 0;                    ///< positions whose KV is offered
    uint32_t progress_slot = 0;
    BATON_FIELDS(offer, sequence, keys, blocks, generations, tokens, progress_slot)
};
/// D → P: taken; D already holds the first `have_blocks` blocks.
struct Accept {
    OfferId offer;
    uint32_t have_blocks = 0;
    BATON_FIELDS(offer, have_blocks)
};
struct Busy {
    OfferId offer;
    std::string reason;
    BATON_FIELDS(offer, reason)
};
/// P → D: the KV is complete; `emitted` are the facts so far, the last one not in the KV yet.
struct Commit {
    OfferId offer;
    std::vector<TokenId> emitted;
    std::vector<uint64_t> checksums;  ///< verify mode: one a block, over its pages in (layer, k|v) order; else empty
    BATON_FIELDS(offer, emitted, checksums)
};
/// D → P: everything copied (or given up, `ok` false): the blocks are P's again.
struct Release {
    OfferId offer;
    bool ok = true;
    BATON_FIELDS(offer, ok)
};
/// P → D: the offer is void (sequence ended, aborted, or lease over).
struct Withdraw {
    OfferId offer;
    std::string reason;
    BATON_FIELDS(offer, reason)
};
/// tcp mover, D → P: send these blocks (indices into the offer's list) as they get complete.
struct PullRequest {
    OfferId offer;
    uint64_t pull = 0;
    std::vector<uint32_t> block_indices;
    BATON_FIELDS(offer, pull, block_indices)
};
/// tcp mover, P → D: pages follow this frame's header as raw bytes.
struct ExtentHeader {
    uint64_t pull = 0;
    uint32_t first_layer = 0, layers = 0;
    uint32_t first_index = 0, indices = 0;  ///< positions in PullRequest::block_indices
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    bool last = false;
    bool failed = false;
    BATON_FIELDS(pull, first_layer, layers, first_index, indices, bytes, checksum, last, failed)
};

// ---- supervisor ↔ worker ------------------------------------------------------------------------------------------

struct Gpu {
    uint32_t index = 0;
    std::string name;
    uint64_t memory_bytes = 0;
    BATON_FIELDS(index, name, memory_bytes)
};
struct WorkerReady {
    std::string address;  ///< ip:port it is known by
    std::string host_id;
    uint32_t cpu_count = 0;
    uint64_t memory_bytes = 0;
    std::vector<Gpu> gpus;
    uint32_t pid = 0;
    std::string gpu_error;  ///< why there are no GPUs: no CUDA module, no driver, no GPU
    BATON_FIELDS(address, host_id, cpu_count, memory_bytes, gpus, pid, gpu_error)
};
struct SpawnReplica {
    std::string model_uid;
    ReplicaTarget target;
    uint8_t role = 0;
    std::vector<std::string> args;  ///< command line of `baton replica`, without secrets
    std::vector<std::pair<std::string, std::string>> env;
    BATON_FIELDS(model_uid, target, role, args, env)
};
struct SpawnResult {
    std::string model_uid;
    ReplicaTarget target;
    uint32_t pid = 0;
    std::string error;  ///< "" where it runs
    BATON_FIELDS(model_uid, target, pid, error)
};
struct StopReplica {
    std::string model_uid;
    ReplicaTarget target;
    uint32_t grace_ms = 0;  ///< SIGTERM first, SIGKILL after that
    BATON_FIELDS(model_uid, target, grace_ms)
};
/// The process is reaped: nothing of it is left.
struct ReplicaExited {
    std::string model_uid;
    ReplicaTarget target;
    int32_t status = 0;     ///< exit code, or -signal
    std::string last_output;  ///< tail of its stderr
    BATON_FIELDS(model_uid, target, status, last_output)
};
struct GpuUse {
    uint32_t index = 0;
    uint64_t memory_used = 0;
    double utilization = 0;  ///< 0…1
    BATON_FIELDS(index, memory_used, utilization)
};
struct WorkerStats {
    double cpu_utilization = 0;
    uint64_t memory_used = 0, memory_total = 0;
    uint32_t snapshots_free = 0, snapshots_filling = 0, snapshots_complete = 0, snapshots_leased = 0;
    std::vector<GpuUse> gpus{};
    BATON_FIELDS(cpu_utilization, memory_used, memory_total, snapshots_free, snapshots_filling, snapshots_complete,
                 snapshots_leased, gpus)
};

/// S → W: bring a model of a hub into this host's cache (baton/hub/hub.hpp). W answers PullProgress while it does, PullDone
/// once.
struct PullModel {
    uint64_t pull = 0;
    std::string hub, repo, revision, format, quantization, gguf_file;
    BATON_FIELDS(pull, hub, repo, revision, format, quantization, gguf_file)
};
struct CancelPull {
    uint64_t pull = 0;
    BATON_FIELDS(pull)
};
struct PulledFile {
    std::string name;
    uint64_t bytes_done = 0, bytes_total = 0;
    bool done = false;
    BATON_FIELDS(name, bytes_done, bytes_total, done)
};
struct PullProgress {
    uint64_t pull = 0;
    uint64_t bytes_done = 0, bytes_total = 0;
    std::vector<PulledFile> files;
    BATON_FIELDS(pull, bytes_done, bytes_total, files)
};
struct PullDone {
    uint64_t pull = 0;
    uint8_t code = 0;  ///< ErrorCode; kOk: `path` is what model_path takes
    std::string path, commit, error, param;
    BATON_FIELDS(pull, code, path, commit, error, param)
};
/// S → W: what is in this host's cache?
struct ListCached {
    uint64_t ask = 0;
    BATON_FIELDS(ask)
};
struct CachedSnapshot {
    std::string hub, repo, commit, path;
    std::vector<std::string> files;
    uint64_t bytes = 0;
    BATON_FIELDS(hub, repo, commit, path, files, bytes)
};
struct CachedList {
    uint64_t ask = 0;
    std::vector<CachedSnapshot> snapshots;
    BATON_FIELDS(ask, snapshots)
};

// ---- replica ↔ worker: the host's snapshot store -------------------------------------------------------------------

/// R → W: which store (one per model identity and layout) this replica uses. W answers StoreReady with the memory file.
struct StoreOpen {
    ReplicaTarget self;
    std::string model_uid;
    Digest identity{};       ///< model, dtype, page format
    uint64_t block_bytes = 0;
    BATON_FIELDS(self, model_uid, identity, block_bytes)
};
struct StoreReady {
    uint32_t slots = 0;  ///< 0: no store
    uint64_t slot_bytes = 0;
    BATON_FIELDS(slots, slot_bytes)
};
/// R → W: room for these blocks, please; ones already there need none.
struct StoreAllot {
    uint64_t ask = 0;
    std::vector<Digest> keys;
    BATON_FIELDS(ask, keys)
};
/// W → R: the slot of each asked key, UINT32_MAX where none is given.
struct StoreSlots {
    uint64_t ask = 0;
    std::vector<uint32_t> slots;
    BATON_FIELDS(ask, slots)
};
/// R → W: these slots are filled (or given up).
struct StorePublish {
    std::vector<uint32_t> slots;
    bool ok = true;
    BATON_FIELDS(slots, ok)
};
/// R → W: lease the longest run of these keys, from the first. W answers StoreSlots with that many slots.
struct StoreLease {
    uint64_t ask = 0;
    std::vector<Digest> keys;
    BATON_FIELDS(ask, keys)
};
struct StoreUnlease {
    std::vector<uint32_t> slots;
    BATON_FIELDS(slots)
};

// ---- replica ↔ worker: packed weights the replicas of a host share --------------------------------------------------

/// R → W, once a link, before the weights are packed. The link holds the image until it closes.
struct WeightsOpen {
    ReplicaTarget self;
    std::string model_uid;
    Digest key{};        ///< of all that the bytes depend on
    uint64_t bytes = 0;  ///< of the image
    BATON_FIELDS(self, model_uid, key, bytes)
};
enum class WeightsState : uint8_t {
    kNone = 0,   ///< nothing is shared: pack your own
    kFill = 1,   ///< with a writable, zeroed file: pack into it, seal it, say WeightsFilled
    kReady = 2,  ///< with a sealed file
};
/// How long filling `bytes` may take before another replica is asked: slower than any machine that can serve the model.
[[nodiscard]] constexpr int64_t weights_fill_ms(uint64_t bytes) { return 10'000 + static_cast<int64_t>(bytes >> 15); }
/// W → R. While another replica fills the image the answer waits.
struct WeightsGrant {
    WeightsState state = WeightsState::kNone;
    uint64_t bytes = 0;
    BATON_FIELDS(state, bytes)
};
/// R → W: the file is filled and sealed, or given up.
struct WeightsFilled {
    bool ok = true;
    BATON_FIELDS(ok)
};

// ---- Xavier, mover nccl: P ↔ D (docs/XAVIER.md, section 9) -------------------------------------------------------------

/// P → D to begin pairing, with the channel's id; both, how the pairing (or the channel, later) ended.
enum class PairStep : uint8_t { kOpen = 0, kReady = 1, kFailed = 2 };
struct ChannelPair {
    uint64_t attempt = 0;  ///< counted by P; what names an older one is ignored
    PairStep step = PairStep::kOpen;
    std::vector<uint8_t> id;
    std::string reason;
    BATON_FIELDS(attempt, step, id, reason)
};
/// P → D: an extent lies proven in a buffer of P's and is sent now.
struct ChannelExtent {
    uint64_t attempt = 0;
    uint64_t number = 0;  ///< of the extent within the attempt, from 1
    uint64_t pull = 0;
    uint32_t first_layer = 0, layers = 0;
    uint32_t first_index = 0, indices = 0;  ///< positions in PullRequest::block_indices
    uint64_t bytes = 0;
    BATON_FIELDS(attempt, number, pull, first_layer, layers, first_index, indices, bytes)
};
/// D → P: D has a buffer for each extent up to that number, and receives them when they are announced.
struct ChannelGo {
    uint64_t attempt = 0;
    uint64_t number = 0;
    BATON_FIELDS(attempt, number)
};
/// P → D: the extent left P whole.
struct ChannelSent {
    uint64_t attempt = 0;
    uint64_t number = 0;
    BATON_FIELDS(attempt, number)
};

/// The wire number of a message is its index here: append only.
using Message =
    std::variant<Heartbeat, Hello, Refused, Prefill, Run, Retarget, Abort, Drain, Peers, ReplicaReady, LinkState,
                 TokenBatch, TargetBusy, HandoffDone, SequenceFailed, Fallback, ReplicaStats, LinkHello, Offer, Accept,
                 Busy, Commit, Release, Withdraw, PullRequest, ExtentHeader, WorkerReady, SpawnReplica, SpawnResult,
                 StopReplica, ReplicaExited, WorkerStats, StoreOpen, StoreReady, StoreAllot, StoreSlots, StorePublish,
                 StoreLease, StoreUnlease, WeightsOpen, WeightsGrant, WeightsFilled, ChannelPair, ChannelExtent,
                 ChannelGo, ChannelSent, PullModel, CancelPull, PullProgress, PullDone, ListCached, CachedList>;

/// Frame header: "BTN1", u16 type, u16 zero, u32 body length (little-endian).
inline constexpr size_t kFrameHeaderBytes = 12;
struct FrameHeader {
    uint16_t type = 0;
    uint32_t body_bytes = 0;
};

/// Header and body.
[[nodiscard]] std::vector<std::byte> encode(const Message& m);
/// kCorrupt when the magic, type or length is wrong.
[[nodiscard]] Expected<FrameHeader> decode_header(std::span<const std::byte> header);
/// kCorrupt when the body is not exactly one message of that type (an unknown tail of a newer sender is allowed).
[[nodiscard]] Expected<Message> decode_body(uint16_t type, std::span<const std::byte> body);
/// Name of a message type for logs.
[[nodiscard]] std::string_view name_of(const Message& m);

}  // namespace baton::wire

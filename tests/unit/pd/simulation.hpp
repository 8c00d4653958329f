#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "baton/kv/snapshot_index.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/pd/router.hpp"
#include "simulation_model.hpp"

/// A whole deployment on a fake clock: a router, replica cores, a snapshot store, movers that copy at leisure, and a
/// network and processes that fail. One seed decides everything, so a failure can be replayed event by event.
///
/// Files: simulation_model (what a model computes), simulation_network (links), simulation_process (a replica around its
/// core: steps, pulls, store copies), simulation (supervisor, clients, faults, what must hold at the end).
namespace baton::pd::sim {

/// Random numbers that are the same with every standard library.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}
    uint64_t next();
    /// 0 … n-1.
    uint32_t below(uint32_t n) { return n == 0 ? 0 : static_cast<uint32_t>(next() % n); }
    /// low … high.
    int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1)); }
    bool chance(uint32_t per_mille) { return below(1000) < per_mille; }

  private:
    uint64_t state_;
};

/// What a seed's world looks like; drawn from the seed.
struct World {
    uint32_t prefills = 1, decodes = 1, hybrids = 0;
    uint32_t requests = 10;
    uint32_t prompts = 3;      ///< distinct beginnings that prompts share
    CoreConfig core;           ///< of all replicas, but for self, epoch, role
    uint32_t decode_blocks = 0;  ///< pool of decode replicas
    RouterConfig router;
    uint32_t store_slots = 0;
    int64_t delay_ms = 3;      ///< longest ordinary delay of a message
    int64_t step_ms = 4;       ///< longest step
    int64_t copy_ms = 3;       ///< longest pause between two copied blocks
    int64_t slow_copy_ms = 0;  ///< now and then a copy pauses that long
    int64_t cancel_ms = 10;    ///< longest time until the mover hears of a cancellation
    int64_t notice_ms = 30;    ///< longest time until an end notices a closed link
    int64_t router_tick_ms = 50;
    uint32_t plans = 1;        ///< plans under way at once; 2 where core.steps_ahead is 1
    int64_t collect_ms = 0;    ///< longest time from the end of a step on the device until the host takes its result
    bool input_waits_for_step = true;
    bool reads_the_dead = true;  ///< a pull goes on although its source died, as from mapped memory
    bool calm = false;           ///< no faults, aborts or short deadlines: every request must succeed
    int64_t fault_every_ms = 200;
    int64_t faults_until_ms = 1'500;
    uint32_t weights[9]{};  ///< of kinds of faults, see Simulation::fault
    uint32_t step_fails = 0, pull_fails = 0, replays = 0, aborts = 0, deadlines = 0;  ///< per mille
    int64_t arrivals_ms = 40;  ///< longest pause between two requests
    ReplicaCore::Faults planted;
};
[[nodiscard]] World draw_world(uint64_t seed);
/// Gives the world's replicas a device that samples by itself and runs steps one ahead of the host.
void run_ahead(World& world, int64_t collect_ms);

/// What a run found; `failure` is empty where all held.
struct Report {
    std::string failure;
    uint64_t events = 0;
    int64_t simulated_ms = 0;
    uint32_t requests = 0, refused = 0, finished = 0, failed = 0, aborted = 0, timed_out = 0;
    uint64_t pending_rows = 0, void_rows = 0;  ///< rows of tokens not known yet, and those that came to nothing
    std::map<uint64_t, std::vector<TokenId>> answers;  ///< of requests that finished
    uint64_t tokens = 0, handoffs = 0, handoff_bytes = 0, fallbacks = 0, failovers = 0, kills = 0, snapshots_read = 0;
};

/// One stream connection between two ends (0 and 1): in order, and broken rather than lossy.
struct Connection {
    bool broken = false;         ///< nothing sent from now on arrives
    bool open[2]{true, true};    ///< that end has not noticed a break
    TimeMs last[2]{};            ///< latest delivery to that end
    TimeMs stalled_until{};
    std::weak_ptr<struct Process> ends[2];  ///< of a hand-off link
};
using ConnectionPtr = std::shared_ptr<Connection>;

/// The host's snapshot memory with its directory; a new one when the worker restarts.
struct Store {
    Store(uint32_t slots, uint32_t block_tokens, int64_t lease_ms) : index(slots, lease_ms), rows(slots * block_tokens) {}
    kv::SnapshotIndex index;
    std::vector<uint64_t> rows;
};

struct Process;

struct Pull {
    StartPull order;
    std::shared_ptr<Process> source;
    std::weak_ptr<Process> reader;
    uint32_t next = 0;       ///< block to be copied next
    uint32_t progress = 0;   ///< seen
    bool cancelled = false, scheduled = false, over = false, lost = false;
};

/// A step on the device, with what the host gave along: the host's memory moves on while it runs.
struct DeviceStep {
    StepPlan plan;
    std::vector<std::vector<BlockId>> blocks;  ///< of each item
    std::vector<std::vector<TokenId>> tokens;  ///< of each item's sequence, as far as known when the step was submitted
    bool computed = false;
    std::vector<Sampled> sampled;
};

/// One replica process: the core and everything that surrounds it on its host.
struct Process {
    wire::ReplicaTarget self;
    Role role = Role::kHybrid;
    std::unique_ptr<ReplicaCore> core;
    bool alive = true;
    TimeMs frozen_until{};
    uint64_t freezes = 0;
    std::deque<std::function<void()>> inbox;  ///< inputs that wait for a step or a thaw

    // Memory that peers may read, also when the process is gone.
    std::vector<uint64_t> rows;        ///< KV, one word a position: [blocks, block_tokens]
    std::vector<Generation> generations;
    struct Progress { OfferId offer; uint32_t tokens = 0; };
    std::vector<Progress> progress;
    std::map<OfferId, std::vector<TokenId>> offered;  ///< what an offer's KV must be of
    std::vector<std::weak_ptr<Pull>> readers;

    std::deque<std::shared_ptr<DeviceStep>> steps;  ///< submitted and not collected, in order
    struct LastToken { uint64_t handle = 0; TokenId token = -1; };
    std::vector<LastToken> last;  ///< the device's state rows: what was sampled last, and for whom
    std::map<uint64_t, std::shared_ptr<Pull>> pulls;
    uint32_t copies = 0;
    /// Movers at work on each block: pulls and snapshot loads write, snapshot copies read.
    std::vector<uint32_t> written, read;

    ConnectionPtr control;  ///< end 0: supervisor
    std::map<ReplicaId, std::pair<wire::ReplicaTarget, ConnectionPtr>> peers;  ///< end 0: prefill, end 1: decode
    std::shared_ptr<Store> store;
    ConnectionPtr store_link;  ///< end 0: worker
    uint64_t store_owner = 0;
};
using ProcessPtr = std::shared_ptr<Process>;

class Simulation {
  public:
    Simulation(uint64_t seed, World world, bool trace);
    ~Simulation();
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;
    [[nodiscard]] Report run();

  private:
    struct Slot {
        ReplicaId id;
        Role role;
        uint64_t epoch = 0;
        ProcessPtr process;  ///< null while none is ready
    };
    struct Request {
        wire::Sequence sequence;
        Expectation expected;
        std::vector<TokenId> answer;
        uint32_t delivered = 0;
        bool ended = false, aborted = false, short_deadline = false;
    };
    struct Event {
        TimeMs at;
        uint64_t order;
        std::function<void()> run;
    };
    struct Later {
        bool operator()(const Event& a, const Event& b) const {
            return a.at != b.at ? a.at > b.at : a.order > b.order;
        }
    };

    // simulation.cpp: supervisor and clients
    void start();
    void spawn(Slot& slot);
    void submit_next();
    void after_router();
    void deliver(const Deliver& d);
    void end(const End& e);
    void client_abort(SequenceId id);
    void router_tick();
    void fault();
    void kill(const ProcessPtr& p);
    void freeze(const ProcessPtr& p, int64_t ms);
    void drain(const ProcessPtr& p, bool on);
    void restart_store();
    void silent(const ProcessPtr& p);
    [[nodiscard]] std::string unrest() const;
    [[nodiscard]] bool over();
    void check_quiet();
    [[nodiscard]] ProcessPtr any_process();
    [[nodiscard]] ConnectionPtr any_link();
    [[nodiscard]] ProcessPtr find(wire::ReplicaTarget target) const;

    // simulation_network.cpp
    [[nodiscard]] int64_t delay();
    void transmit(const ConnectionPtr& link, int to, std::function<void()> run);
    void notice(const ConnectionPtr& link, int end, int64_t after_ms, std::function<void()> run);
    void to_replica(const ProcessPtr& p, const wire::Message& message);
    void to_supervisor(const ProcessPtr& p, wire::Message message);
    void to_peer(const ProcessPtr& p, wire::ReplicaTarget peer, wire::Message message);
    void to_store(const ProcessPtr& p, wire::Message message);
    void store_request(const ProcessPtr& p, const std::shared_ptr<Store>& store, const ConnectionPtr& link, uint64_t owner, const wire::Message& m);
    void connect_control(const ProcessPtr& p);
    void break_control(const ProcessPtr& p);
    void connect_peers(const ProcessPtr& p);
    void connect_pair(const ProcessPtr& prefill, const ProcessPtr& decode);
    void break_link(const ConnectionPtr& link);
    void reconnect_pair(const ConnectionPtr& link);
    void lose_peer(const ProcessPtr& p, const ConnectionPtr& link, wire::ReplicaTarget peer);
    void connect_store(const ProcessPtr& p);
    void break_store(const ProcessPtr& p);
    void tell_links(const ProcessPtr& p);
    void tell_link(const ProcessPtr& p, wire::ReplicaTarget peer, bool up);

    // simulation_process.cpp
    void input(const ProcessPtr& p, std::function<void()> run);
    void drain_inbox(const ProcessPtr& p);
    void after_input(const ProcessPtr& p);
    void perform(const ProcessPtr& p);
    void perform(const ProcessPtr& p, Action& action);
    void plan(const ProcessPtr& p);
    void submit(const ProcessPtr& p, StepPlan plan);
    void schedule_step(const ProcessPtr& p);
    void step_computed(const ProcessPtr& p);
    void step_done(const ProcessPtr& p);
    void compute(Process& p, DeviceStep& step);
    [[nodiscard]] bool compute_item(Process& p, DeviceStep& step, uint32_t index);
    [[nodiscard]] bool check_rows(const Process& p, const StepItem& item, std::span<const BlockId> blocks);
    void claim(Process& p, std::span<const BlockId> blocks, bool writes, bool begins);
    void progress(Process& p, uint32_t slot, uint32_t tokens);
    void wake_readers(Process& p);
    void start_pull(const ProcessPtr& p, const StartPull& order);
    void kick(const ProcessPtr& p, const std::shared_ptr<Pull>& pull, int64_t after_ms);
    void pull_on(const ProcessPtr& p, const std::shared_ptr<Pull>& pull);
    void pull_over(const ProcessPtr& p, const std::shared_ptr<Pull>& pull, bool ok, std::string reason);
    void store_copy(const ProcessPtr& p, const std::shared_ptr<Store>& store, const StoreCopy& order, uint32_t done);
    void tick(const ProcessPtr& p);
    [[nodiscard]] int64_t copy_pause();
    [[nodiscard]] bool frozen(const Process& p) const { return now_ < p.frozen_until; }

    void at(TimeMs when, std::function<void()> run);
    void in(int64_t ms, std::function<void()> run) { at(now_ + ms, std::move(run)); }
    void fail(std::string why);
    void note(const std::string& line) const;
    [[nodiscard]] bool faults_on() const { return !world_.calm && now_.ms < world_.faults_until_ms; }

    uint64_t seed_;
    World world_;
    bool trace_;
    Random random_;
    Random clients_;  ///< of what is asked and when, whatever happens to it
    TimeMs now_{0};
    uint64_t order_ = 0;
    std::priority_queue<Event, std::vector<Event>, Later> events_;
    Router router_;
    std::vector<Slot> slots_;
    std::vector<ProcessPtr> processes_;  ///< all there ever were
    std::shared_ptr<Store> store_;
    uint64_t next_owner_ = 1;
    std::vector<std::vector<TokenId>> beginnings_;
    std::vector<Request> requests_;
    uint32_t next_request_ = 0;
    TimeMs last_end_{};  ///< when the last request ended, or the last disturbance
    Report report_;
};

/// Names a process and a message for the trace.
[[nodiscard]] std::string describe(wire::ReplicaTarget target);
[[nodiscard]] std::string describe(const wire::Message& message);

}  // namespace baton::pd::sim

#include "baton/replica/replica.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "baton/backend/cuda.hpp"
#include "baton/base/growing_pause.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "baton/config/settings.hpp"
#include "baton/grammar/constraints.hpp"
#include "baton/model/model.hpp"
#include "baton/tensor/dtype.hpp"
#include "peer_links.hpp"
#include "shared_weights.hpp"

namespace baton::replica {
namespace {

constexpr uint64_t kDefaultKvBytes = 1ull << 30;
constexpr size_t kSnapshotBytesHeld = 512u << 20;  ///< of KV that waits to be copied into the snapshot store
constexpr int kCoresToSpin = 8;
constexpr int64_t kSpinUs = 4'000;  ///< most decode steps to their end: a thread that naps in one takes up to twice as long for what follows
constexpr int64_t kLossToldMs = 5'000;  ///< until a supervisor that stays away is told of again
constexpr std::string_view kFillDelay = "fill_delay_ms=";

/// The replica's lifetime: loads the model, opens links, feeds messages to the engine and its actions to the links.
class Replica {
  public:
    explicit Replica(const config::ReplicaSettings& settings) : settings_(settings), signals_(io_, SIGTERM, SIGINT) {
        const char* secret = std::getenv("BATON_LINK_SECRET");
        secret_ = secret == nullptr ? "" : secret;
        ::unsetenv("BATON_LINK_SECRET");
        host_id_ = settings.host_id.empty() ? net::default_host_id() : settings.host_id;
    }

    int run() {
        if (auto loaded = load(); !loaded) {
            // The worker keeps the last lines of stderr; the launch error shows them to the user.
            log::error("replica.load_failed", {{"reason", loaded.error().message}});
            return 1;
        }
        signals_.async_wait([this](boost::system::error_code ec, int) {
            if (!ec) stop(0);
        });
        connect_supervisor();
        if (!settings_.worker_unix.empty() && settings_.snapshots) connect_store();
        io_.run();
        // Links that were told to close do so now; a peer that does not read does not hold the process up.
        io_.restart();
        io_.run_for(std::chrono::milliseconds(limits::kExitCloseMs));
        return exit_code_;
    }

  private:
    Expected<void> load() {
        const int64_t begin = steady_now_us();
        std::jthread opening;  // the GPU gets ready while the model's files are read
        if (const auto gpu = config::gpu_of(settings_)) opening = std::jthread([gpu] { (void)backend::cuda_open(*gpu); });
        BATON_TRY_ASSIGN(const model::ModelInfo info, model::inspect_model(settings_.model_path));
        BATON_TRY_ASSIGN(const backend::Plan plan, model::load_plan(settings_.model_path));
        const int64_t read = steady_now_us();
        if (opening.joinable()) opening.join();
        const int64_t open = steady_now_us();
        identity_ = info.identity;
        load_constraints(info);
        const uint32_t model_len = settings_.max_model_len == 0 ? info.context_length
                                                                : std::min(settings_.max_model_len, info.context_length);
        BATON_TRY(config::gpu_of(settings_) ? load_on_gpu(plan, model_len) : load_on_cpu(plan, model_len));
        const std::string phases = "model " + std::to_string((read - begin) / 1000) + ", open " + std::to_string((open - read) / 1000) +
                                   ", " + backend_phases(steady_now_us() - open);
        BATON_TRY(start_links());
        start_transfer();
        BATON_TRY(plant_faults());
        start_engine(model_len);
        log::info("replica.loaded", {{"model", info.architecture},
                                     {"engine", engine_name_},
                                     {"blocks", pool_->layout().blocks},
                                     {"kv_bytes", pool_->layout().pool_bytes()},
                                     {"weight_bytes", info.weight_bytes},
                                     {"ms", (steady_now_us() - begin) / 1000},
                                     {"phases", phases}});
        return {};
    }

    /// Once the model is loaded the tokenizer serves constraints alone, which keep what they need of it.
    void load_constraints(const model::ModelInfo& info) {
        constraints_ = grammar::Constraints::start(
            [tokenizer = info.tokenizer, ends = info.eos, vocab = info.shape.vocab] {
                std::vector<grammar::Vocabulary::Token> tokens(std::min(tokenizer->vocab_size(), vocab));
                for (size_t i = 0; i < tokens.size(); ++i) {
                    const auto id = static_cast<TokenId>(i);
                    tokens[i] = {tokenizer->token_bytes(id), tokenizer->is_special(id) || std::ranges::find(ends, id) != ends.end()};
                }
                return grammar::Vocabulary::make(tokens, vocab);
            },
            settings_.max_num_seqs);
    }

    /// What comes with a sequence that has a constraint: it is compiled while the sequence waits and its prompt is computed.
    void prepare(const wire::Message& message) {
        if (const auto* prefill = std::get_if<wire::Prefill>(&message)) constraints_->prepare(prefill->sequence.sampling.constraint);
        else if (const auto* run = std::get_if<wire::Run>(&message)) constraints_->prepare(run->sequence.sampling.constraint);
        else if (const auto* offer = std::get_if<wire::Offer>(&message)) constraints_->prepare(offer->sequence.sampling.constraint);
    }

    /// What loading the backend took, in ms: the parts it names and what is left of `us`.
    [[nodiscard]] std::string backend_phases(int64_t us) const {
        if (!gpu_) return "backend " + std::to_string(us / 1000);
        std::string text;
        double rest = static_cast<double>(us) / 1000.0;
        for (const backend::LoadPhase& phase : gpu_->load_phases()) {
            text += phase.name + " " + std::to_string(std::lround(phase.ms)) + ", ";
            rest -= phase.ms;
        }
        return text + "other " + std::to_string(std::lround(rest));
    }

    /// Pool in shared host memory, backend on the CPU.
    Expected<void> load_on_cpu(const backend::Plan& plan, uint32_t model_len) {
        backend::CpuOptions cpu;
        cpu.threads = settings_.threads;
        cpu.block_tokens = settings_.block_tokens;
        cpu.max_batch_tokens = pd::step_rows_max(core_config(model_len));
        cpu.max_batch_slices = settings_.max_num_seqs;
        cpu.kv_f32 = settings_.kv_dtype == "f32";
        cpu.kv_first = settings_.kv_layout == "kv";
        cpu.isa = settings_.isa;
        cpu.blocks = 1;
        BATON_TRY_ASSIGN(const kv::PoolLayout unit, backend::cpu_kv_layout(plan.shape, cpu));
        cpu.blocks = block_count(unit.block_bytes(), model_len);
        BATON_TRY_ASSIGN(const kv::PoolLayout layout, backend::cpu_kv_layout(plan.shape, cpu));
        BATON_TRY_ASSIGN(pool_, xavier::SharedPool::create(layout, kProgressSlots));
        cpu.model = identity_;
        BATON_TRY_ASSIGN(cpu_, make_cpu_backend(plan, cpu));
        engine_name_ = cpu_->describe();
        memory_bytes_ = layout.pool_bytes();
        return {};
    }

    /// Weights, pool and backend on a GPU; host memory holds the words that peers watch.
    Expected<void> load_on_gpu(const backend::Plan& plan, uint32_t model_len) {
        backend::CudaOptions cuda;
        cuda.device = *config::gpu_of(settings_);
        cuda.fp16 = settings_.dtype == "f16";
        cuda.block_tokens = settings_.block_tokens;
        cuda.memory_bytes = settings_.gpu_memory_bytes;
        cuda.max_batch_tokens = pd::step_rows_max(core_config(model_len));
        cuda.max_batch_slices = settings_.max_num_seqs;
        cuda.max_model_len = model_len;
        cuda.deterministic = settings_.deterministic;
        cuda.kv_first = settings_.kv_layout == "kv";
        cuda.cache_folder = config::default_cache_dir() + "/cuda";
        if (settings_.kv_cache_bytes != 0) cuda.blocks = block_count(gpu_block_bytes(plan.shape), model_len);
        BATON_TRY_ASSIGN(gpu_, backend::make_cuda_backend(plan, cuda));
        engine_name_ = gpu_->describe();
        memory_bytes_ = gpu_->memory_bytes();
        BATON_TRY_ASSIGN(pool_, xavier::SharedPool::create_words(gpu_->kv_layout(), kProgressSlots));
        return gpu_->share_words(pool_->words());
    }

    /// Bytes of a KV block on a GPU, whose elements have two.
    [[nodiscard]] size_t gpu_block_bytes(const backend::ModelShape& shape) const {
        kv::PoolLayout layout;
        layout.dtype = static_cast<uint8_t>(tensor::DType::kBF16);
        layout.layers = shape.layers;
        layout.kv_heads = shape.kv_heads;
        layout.head_dim = shape.head_dim;
        layout.block_tokens = settings_.block_tokens;
        return layout.block_bytes();
    }

    /// All but the number of blocks, which is known once there is a pool.
    [[nodiscard]] pd::CoreConfig core_config(uint32_t model_len) const {
        pd::CoreConfig core;
        core.self = settings_.replica;
        core.epoch = settings_.epoch;
        core.role = settings_.role;
        core.model_identity = identity_;
        core.block_tokens = settings_.block_tokens;
        core.max_model_len = model_len;
        core.max_running = settings_.max_num_seqs;
        core.step_tokens = settings_.max_num_batched_tokens;
        core.progress_slots = kProgressSlots;
        core.prefix_cache = settings_.prefix_cache;
        core.snapshots = settings_.snapshots && !settings_.worker_unix.empty();
        core.snapshot_read_always = settings_.snapshot_read_always;
        core.clock_us = steady_now_us;
        return core;
    }

    void start_engine(uint32_t model_len) {
        pd::CoreConfig core = core_config(model_len);
        core.blocks = pool_->layout().blocks;
        core.snapshot_blocks_max = static_cast<uint32_t>(std::max<size_t>(kSnapshotBytesHeld / pool_->layout().block_bytes(), 1));
        const bool log_steps = settings_.log_level == "debug" || settings_.log_level == "trace";
        engine::Engine::Options options;
        options.core = core;
        options.verify_handoff = settings_.verify_handoff;
        options.spin_us = spin_us();
        options.log_steps = log_steps;
        options.constraints = constraints_.get();
        engine::Engine::Callbacks callbacks;
        callbacks.act = [this](pd::Action& a) { act(a); };
        callbacks.stats = [this](const wire::ReplicaStats& s) { to_supervisor(s); };
        callbacks.failed = [this](const Error& e) { device_failed(e); };
        callbacks.tokens_near = [this](int64_t until_us) {
            if (const auto link = announced()) link->expect_send(until_us);
        };
        callbacks.checksums = [this](std::span<const BlockId> blocks) { return transfer_->checksums(blocks); };
        engine_ = gpu_ ? engine::Engine::start(options, std::move(gpu_), *pool_, std::move(callbacks))
                       : engine::Engine::start(options, std::move(cpu_), *pool_, std::move(callbacks));
    }

    /// A thread that looks at its device without a pause takes a core: only where there are many.
    static int64_t spin_us() {
        cpu_set_t cores;
        if (::sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < kCoresToSpin) return 0;
        return kSpinUs;
    }

    void start_transfer() {
        xavier::TransferThread::Callbacks callbacks;
        callbacks.pull_done = [this](pd::PullResult r) {
            engine_->post([r = std::move(r)](pd::ReplicaCore& c, TimeMs now) { c.on_pull_done(now, r); });
        };
        callbacks.pull_verified = [this](uint64_t pull, bool equal) {
            engine_->post([=](pd::ReplicaCore& c, TimeMs now) { c.on_pull_verified(now, pull, equal); });
        };
        callbacks.store_copied = [this](uint64_t copy, bool ok) {
            engine_->post([=](pd::ReplicaCore& c, TimeMs now) { c.on_store_copied(now, copy, ok); });
        };
        callbacks.pull_near = [this] { engine_->expect_work(); };
        transfer_ = gpu_ ? xavier::TransferThread::start(*pool_, gpu_->pool(), std::move(callbacks))
                         : xavier::TransferThread::start(*pool_, std::move(callbacks));
    }

    /// Engine thread. The sequences here have failed; a new process gets the GPU.
    void device_failed(const Error& error) {
        log::error("replica.device_failed", {{"reason", error.message}});
        boost::asio::post(io_, [this] { stop(1); });
    }

    /// The backend on weights that the replicas of this host share, or, where there are none, on weights of its own.
    Expected<std::unique_ptr<backend::Backend>> make_cpu_backend(const backend::Plan& plan, backend::CpuOptions cpu) {
        const int64_t begin = steady_now_us();
        BATON_TRY_ASSIGN(const backend::WeightImage image, backend::cpu_weight_image(plan, cpu));
        weights_ = std::make_unique<SharedWeights>(settings_, secret_);
        auto shared = weights_->acquire(image, [&](int fd) { return fill_weights(plan, cpu, fd); });
        if (shared.fd) {
            cpu.weights_fd = shared.fd.get();
            if (auto backend = backend::make_cpu_backend(plan, cpu, pool_->pool())) {
                log_weights(shared.filled ? "filled" : "shared", image.bytes, begin, "");
                return backend;
            } else {
                shared.reason = backend.error().message;
            }
            cpu.weights_fd = -1;
        }
        weights_.reset();
        auto backend = backend::make_cpu_backend(plan, cpu, pool_->pool());
        if (backend) log_weights("private", image.bytes, begin, shared.reason);
        return backend;
    }

    Expected<void> fill_weights(const backend::Plan& plan, const backend::CpuOptions& cpu, int fd) {
        if (settings_.fault.rfind(kFillDelay, 0) == 0) {
            log::warn("replica.fault_planted", {{"fault", settings_.fault}, {"pid", ::getpid()}});
            std::this_thread::sleep_for(std::chrono::milliseconds(std::atoll(settings_.fault.c_str() + kFillDelay.size())));
        }
        return backend::fill_cpu_weights(plan, cpu, fd);
    }

    static void log_weights(const char* how, uint64_t bytes, int64_t begin_us, const std::string& reason) {
        const int64_t ms = (steady_now_us() - begin_us) / 1000;
        if (reason.empty()) log::info("replica.weights", {{"how", how}, {"bytes", bytes}, {"ms", ms}});
        else log::info("replica.weights", {{"how", how}, {"bytes", bytes}, {"ms", ms}, {"reason", reason}});
    }

    [[nodiscard]] uint32_t block_count(size_t block_bytes, uint32_t model_len) const {
        const uint64_t per_sequence = (model_len + settings_.block_tokens - 1) / settings_.block_tokens;
        uint64_t bytes = settings_.kv_cache_bytes;
        if (bytes == 0) {
            const auto memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
            bytes = std::min(kDefaultKvBytes, memory / 8);
        }
        const auto blocks = static_cast<uint32_t>(std::clamp<uint64_t>(bytes / block_bytes, per_sequence + 1, 1u << 22));
        if (blocks > bytes / block_bytes)
            log::warn("replica.kv_cache_raised", {{"asked_bytes", bytes}, {"bytes", blocks * block_bytes}, {"reason", "one full context must fit"}});
        return blocks;
    }

    Expected<void> start_links() {
        links_ = std::make_unique<PeerLinks>(PeerLinks::Services{
            io_, settings_, secret_, host_id_, identity_, *pool_, [this]() -> engine::Engine& { return *engine_; },
            [this]() -> xavier::TransferThread& { return *transfer_; },
            [this](wire::LinkState s) {
                last_links_ = s;
                to_supervisor(s);
            },
            gpu_ ? &gpu_->pool() : nullptr, [this](const wire::Message& m) { prepare(m); }});
        BATON_TRY_ASSIGN(endpoint_, links_->listen());
        return {};
    }

    /// Fault hooks for tests (docs/XAVIER.md). The supervisor passes them on only where the daemon allows them.
    Expected<void> plant_faults() {
        if (settings_.fault.empty() || settings_.fault.rfind(kFillDelay, 0) == 0) return {};  // see fill_weights
        BATON_TRY_ASSIGN(xavier::TransferThread::Faults faults, xavier::parse_faults(settings_.fault));
        log::warn("replica.fault_planted", {{"fault", settings_.fault}});
        transfer_->plant(std::move(faults));
        return {};
    }

    // ---- actions of the core, on the engine thread ----------------------------------------------------------------

    void act(pd::Action& action) {
        if (auto* a = std::get_if<pd::StartPull>(&action)) return transfer_->start_pull(*a);
        if (auto* a = std::get_if<pd::CancelPull>(&action)) return transfer_->cancel_pull(a->pull);
        if (auto* a = std::get_if<pd::VerifyPull>(&action)) return transfer_->verify_pull(*a);
        if (auto* a = std::get_if<pd::StoreCopy>(&action)) return transfer_->store_copy(*a);
        if (auto* a = std::get_if<pd::ToSupervisor>(&action)) return to_supervisor(a->message);
        if (auto* a = std::get_if<pd::LogEvent>(&action)) {
            if (a->event == log::kKvStaged) log::info(a->event, {{"req", a->request_id}, {"tokens", a->tokens}});
            else if (a->event == log::kKvLoaded) log::info(a->event, {{"req", a->request_id}, {"mover", a->detail}, {"bytes", a->bytes}, {"tokens_here_already", a->tokens}});
            else log::info(a->event, {{"req", a->request_id}, {"reason", a->detail}});
            return;
        }
        boost::asio::post(io_, [this, action = std::move(action)] {
            if (const auto* a = std::get_if<pd::ToPeer>(&action)) links_->send(a->peer, a->message);
            else if (const auto* s = std::get_if<pd::ToStore>(&action); s != nullptr && store_) store_->send(s->message);
        });
    }

    /// Any thread: the link takes messages from all.
    void to_supervisor(const wire::Message& message) {
        if (const auto link = announced()) link->send(message);
    }
    [[nodiscard]] std::shared_ptr<net::Connection> announced() {
        const std::lock_guard lock(announced_mutex_);
        return announced_;
    }
    void set_announced(std::shared_ptr<net::Connection> link) {
        const std::lock_guard lock(announced_mutex_);
        announced_.swap(link);
    }

    // ---- supervisor link, control thread --------------------------------------------------------------------------

    void connect_supervisor() {
        net::connect(io_, {settings_.supervisor_unix, settings_.supervisor_tcp},
                     {"replica", settings_.model_uid + "/" + std::to_string(settings_.replica.value) + "/" + std::to_string(settings_.epoch.value), secret_},
                     limits::kHandshakeTimeoutMs, [this](Expected<std::shared_ptr<net::Connection>> c) {
                         if (stopping_) return;
                         if (!c) return supervisor_lost(c.error());
                         on_supervisor(std::move(*c));
                     });
    }

    void on_supervisor(std::shared_ptr<net::Connection> connection) {
        supervisor_ = std::move(connection);
        supervisor_->start({[this](net::Connection::Received r) { on_supervisor_message(std::move(r.message)); },
                            [this](const Error& e) {
                                supervisor_.reset();
                                set_announced(nullptr);
                                if (stopping_) return;
                                engine_->post([](pd::ReplicaCore& core, TimeMs now) { core.on_supervisor_lost(now); });
                                supervisor_lost(e);
                            }});
        wire::ReplicaReady ready;
        ready.self = {settings_.replica, settings_.epoch};
        ready.host_id = host_id_;
        ready.unix_path = endpoint_.unix_path;
        ready.tcp_address = endpoint_.tcp_address;
        ready.layout = xavier::to_wire(pool_->layout());
        ready.engine = engine_name_;
        ready.memory_bytes = memory_bytes_;
        ready.pid = static_cast<uint32_t>(::getpid());
        supervisor_->send(ready);
        set_announced(supervisor_);
        if (!last_links_.links.empty()) supervisor_->send(last_links_);
        engine_->post([this](pd::ReplicaCore& core, TimeMs) { to_supervisor(core.stats()); });
    }

    void on_supervisor_message(wire::Message message) {
        if (stopping_) return;
        if (!std::holds_alternative<wire::Refused>(message) && lost_since_ != kNever) {
            // It has taken us back. One that takes the link and closes it again, as it does until it knows us, has not.
            log::info("replica.supervisor_back", {{"after_ms", steady_now() - lost_since_}});
            lost_since_ = kNever;
            loss_told_.reset();
        }
        if (const auto* peers = std::get_if<wire::Peers>(&message)) return links_->set_peers(*peers);
        if (std::holds_alternative<wire::Refused>(message)) {
            log::error("replica.refused", {{"reason", std::get<wire::Refused>(message).reason}});
            return stop(1);
        }
        prepare(message);
        engine_->post([m = std::move(message)](pd::ReplicaCore& core, TimeMs now) { core.on_supervisor(now, m); });
    }

    /// Keeps trying for the grace time: a separate worker keeps its replicas while the supervisor restarts.
    void supervisor_lost(const Error& error) {
        const TimeMs now = steady_now();
        if (lost_since_ == kNever) lost_since_ = now;
        if (loss_told_.due(now)) log::warn("replica.supervisor_lost", {{"reason", error.message}, {"for_ms", now - lost_since_}});
        if (now - lost_since_ > limits::kSupervisorGraceMs) {
            log::error("replica.supervisor_gone", {{"after_ms", now - lost_since_}});
            return stop(1);
        }
        retry_.expires_after(std::chrono::milliseconds(200));
        retry_.async_wait([this](boost::system::error_code ec) {
            if (!ec && !stopping_) connect_supervisor();
        });
    }

    // ---- snapshot store link, control thread ----------------------------------------------------------------------

    void connect_store() {
        net::connect(io_, {settings_.worker_unix, ""}, {"replica", settings_.model_uid + "/" + std::to_string(settings_.replica.value), secret_},
                     limits::kHandshakeTimeoutMs, [this](Expected<std::shared_ptr<net::Connection>> c) {
                         if (stopping_) return;
                         if (!c) {
                             log::warn("store.unreachable", {{"reason", c.error().message}});
                             return;
                         }
                         store_ = std::move(*c);
                         store_->start({[this](net::Connection::Received r) { on_store_message(std::move(r)); },
                                        [this](const Error&) {
                                            store_.reset();
                                            if (!stopping_) engine_->post([](pd::ReplicaCore& core, TimeMs now) { core.on_store_up(now, false); });
                                        }});
                         wire::StoreOpen open;
                         open.self = {settings_.replica, settings_.epoch};
                         open.model_uid = settings_.model_uid;
                         open.identity = store_identity();
                         open.block_bytes = pool_->layout().block_bytes();
                         store_->send(open);
                     });
    }

    /// Snapshots are shared by replicas of one model whose pages have the same bytes.
    [[nodiscard]] Digest store_identity() const {
        const kv::PoolLayout& l = pool_->layout();
        return sha256(to_hex(identity_) + "/" + l.page_format + "/" + std::to_string(l.dtype) + "/" + std::to_string(l.block_tokens));
    }

    void on_store_message(net::Connection::Received received) {
        if (stopping_) return;  // it was on its way; the transfer thread is gone
        if (const auto* ready = std::get_if<wire::StoreReady>(&received.message)) {
            if (ready->slots == 0 || received.fds.empty()) return;
            if (auto set = transfer_->set_store(std::move(received.fds.front()), ready->slots, ready->slot_bytes); !set) {
                log::warn("store.unusable", {{"reason", set.error().message}});
                return;
            }
            engine_->post([](pd::ReplicaCore& core, TimeMs now) { core.on_store_up(now, true); });
            return;
        }
        engine_->post([m = std::move(received.message)](pd::ReplicaCore& core, TimeMs now) { core.on_store(now, m); });
    }

    // ---- end ------------------------------------------------------------------------------------------------------

    void stop(int code) {
        if (stopping_) return;
        stopping_ = true;
        exit_code_ = code;
        log::info("replica.stopping");
        signals_.cancel();
        retry_.cancel();
        engine_->stop();  // first: its actions use the transfer thread
        links_->close();
        transfer_.reset();
        if (supervisor_) supervisor_->close();
        if (store_) store_->close();
        io_.stop();
    }

    config::ReplicaSettings settings_;
    std::string secret_;
    std::string host_id_;
    Digest identity_{};
    std::string engine_name_;
    uint64_t memory_bytes_ = 0;
    boost::asio::io_context io_{1};
    boost::asio::signal_set signals_;
    boost::asio::steady_timer retry_{io_};
    std::unique_ptr<SharedWeights> weights_;
    std::unique_ptr<xavier::SharedPool> pool_;
    std::unique_ptr<backend::Backend> cpu_;        ///< one of these until the engine has it
    std::unique_ptr<backend::DeviceBackend> gpu_;
    std::unique_ptr<grammar::Constraints> constraints_;
    std::unique_ptr<PeerLinks> links_;
    net::Endpoint endpoint_;
    std::unique_ptr<engine::Engine> engine_;
    std::unique_ptr<xavier::TransferThread> transfer_;
    std::shared_ptr<net::Connection> supervisor_;
    std::shared_ptr<net::Connection> store_;
    wire::LinkState last_links_;
    std::mutex announced_mutex_;
    std::shared_ptr<net::Connection> announced_;  ///< the supervisor's link once it was told of this replica; guarded
    bool stopping_ = false;
    int exit_code_ = 0;
    TimeMs lost_since_ = kNever;
    GrowingPause loss_told_{kLossToldMs, 6 * kLossToldMs};
};

}  // namespace

int run(const config::ReplicaSettings& settings) {
    log::Level level = log::Level::kInfo;
    (void)log::parse_level(settings.log_level, level);
    log::init(level, settings.log_format == "json" ? log::Format::kJson : log::Format::kText,
              {{"role", to_string(settings.role)}, {"replica", settings.replica.value - 1}, {"model_uid", settings.model_uid}});
    ::prctl(PR_SET_NAME, "baton-replica");  // it was started as /proc/self/exe
    Replica replica(settings);
    return replica.run();
}

}  // namespace baton::replica

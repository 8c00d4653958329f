#include "worker/agent.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <variant>

#include "baton/base/host_of.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "baton/config/replica_settings.hpp"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kConnectTimeoutMs = 5'000;
constexpr int64_t kBackoffMsMin = 50;
constexpr int64_t kBackoffMsMax = 2'000;
constexpr size_t kUnreportedMax = 1024;

/// Binds a TCP socket on `ip`, or on all interfaces where that address is not this host's own (behind NAT). The port is
/// then ours alone, so that no two workers of a host share an address.
Expected<std::pair<UniqueFd, uint16_t>> hold_port(const std::string& ip, uint16_t port) {
    const bool six = ip.find(':') != std::string::npos;
    UniqueFd fd(::socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) return fail(ErrorCode::kIo, std::string("socket: ") + std::strerror(errno));
    sockaddr_storage storage{};
    auto* four_address = reinterpret_cast<sockaddr_in*>(&storage);
    auto* six_address = reinterpret_cast<sockaddr_in6*>(&storage);
    storage.ss_family = six ? AF_INET6 : AF_INET;
    void* raw = six ? static_cast<void*>(&six_address->sin6_addr) : static_cast<void*>(&four_address->sin_addr);
    if (::inet_pton(storage.ss_family, ip.c_str(), raw) != 1)
        return fail(ErrorCode::kInvalidArgument, "the advertised address must be an ip address, got " + ip);
    (six ? six_address->sin6_port : four_address->sin_port) = htons(port);
    socklen_t length = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    if (::bind(fd.get(), address, length) != 0) {
        if (errno == EADDRNOTAVAIL) {
            std::memset(raw, 0, six ? sizeof(in6_addr) : sizeof(in_addr));
            if (::bind(fd.get(), address, length) == 0) errno = 0;
        }
        if (errno != 0)
            return fail(ErrorCode::kIo, "cannot use " + ip + ":" + std::to_string(port) + ": " + std::strerror(errno));
    }
    ::getsockname(fd.get(), address, &length);
    return std::pair(std::move(fd), ntohs(six ? six_address->sin6_port : four_address->sin_port));
}

/// Our own ip on the way to the supervisor, which is what the hosts that reach the supervisor reach us by. Sends nothing:
/// connecting a datagram socket only picks the route.
std::string ip_towards(const std::string& host_port) {
    std::string host(host_of(host_port));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return net::default_route_ip();
    std::string ip;
    for (const addrinfo* at = found; at != nullptr && ip.empty(); at = at->ai_next) {
        const UniqueFd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        sockaddr_storage own{};
        socklen_t length = sizeof own;
        char text[INET6_ADDRSTRLEN] = {};
        if (!fd || ::connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 ||
            ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
            continue;
        const void* raw = own.ss_family == AF_INET6
                              ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr)
                              : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(own).sin_addr);
        if (::inet_ntop(own.ss_family, raw, text, sizeof text) != nullptr) ip = text;
    }
    ::freeaddrinfo(found);
    return ip.empty() ? net::default_route_ip() : ip;
}

Expected<void> make_run_dir(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return fail(ErrorCode::kIo, "cannot make the run folder " + path + ": " + error.message());
    ::chmod(path.c_str(), 0700);
    return {};
}

}  // namespace

Agent::Agent(boost::asio::io_context& io, AgentOptions options)
    : io_(io), options_(std::move(options)), retry_timer_(io), stats_timer_(io), pulls_(std::make_unique<Pulls>(io, [this](const wire::Message& m) {
          if (link_) link_->send(m);
      })) {}

Agent::~Agent() { *alive_ = false; }

Expected<void> Agent::start() {
    const auto& s = options_.settings;
    BATON_TRY(make_run_dir(s.run_dir));
    BATON_TRY(choose_address());
    host_id_ = s.host_id.empty() ? net::default_host_id() : s.host_id;
    const uint64_t memory = read_memory().total;
    store_ = std::make_unique<SnapshotStore>(
        io_, SnapshotStore::Options{s.run_dir + "/worker.sock", s.link_secret, address_,
                                    s.snapshot_bytes > 0 ? s.snapshot_bytes : memory / 4,
                                    s.share_weights ? memory : 0,
                                    2 * limits::kTransferTimeoutMs,
                                    [this](const std::string& uid, const wire::ReplicaTarget& t) {
                                        return replicas_.contains(Key{uid, t.replica.value, t.epoch.value});
                                    }});
    BATON_TRY(store_->listen());
    // Before the first link: a slow driver would make it look dead.
    gpus_ = options_.list_gpus ? options_.list_gpus() : list_gpus();
    gpu_meter_ = std::make_unique<GpuMeter>(gpus_.gpus);
    lost_at_ = steady_now();
    connect();
    return {};
}

Expected<void> Agent::choose_address() {
    const auto& s = options_.settings;
    std::string ip = s.advertise_ip;
    if (ip.empty()) ip = s.supervisor_unix.empty() ? ip_towards(s.supervisor_tcp) : "127.0.0.1";
    BATON_TRY_ASSIGN(auto held, hold_port(ip, s.worker_port));
    port_holder_ = std::move(held.first);
    address_ = (ip.find(':') == std::string::npos ? ip : "[" + ip + "]") + ":" + std::to_string(held.second);
    return {};
}

void Agent::connect() {
    net::connect(io_, {options_.settings.supervisor_unix, options_.settings.supervisor_tcp},
                 {"worker", address_, options_.settings.link_secret}, kConnectTimeoutMs,
                 [this, alive = alive_](Expected<std::shared_ptr<net::Connection>> result) {
                     if (*alive) on_connected(std::move(result));
                 });
}

void Agent::on_connected(Expected<std::shared_ptr<net::Connection>> result) {
    if (stopping_) {
        if (result) (*result)->close();
        return;
    }
    if (!result) return retry_or_give_up(result.error());
    link_ = std::move(*result);
    backoff_ms_ = 0;
    link_->start({[this, alive = alive_](net::Connection::Received r) {
                      if (*alive) on_message(r.message);
                  },
                  [this, alive = alive_](const Error& error) {
                      if (*alive) on_link_lost(error);
                  }});
    announce();
}

void Agent::retry_or_give_up(const Error& error) {
    const bool child = options_.settings.child_of_supervisor;
    const int64_t patience = child ? options_.connect_patience_ms : options_.settings.supervisor_grace_ms;
    if (error.code == ErrorCode::kUnauthorized || steady_now() - lost_at_ > patience) {
        log::error("worker.supervisor_unreachable", {{"error", error.message}, {"replicas", replicas_.size()}});
        return stop(options_.stop_grace_ms, 1);
    }
    if (backoff_ms_ == 0) log::warn("worker.supervisor_unreachable", {{"error", error.message}});
    backoff_ms_ = std::clamp(backoff_ms_ * 2, kBackoffMsMin, kBackoffMsMax);
    retry_timer_.expires_after(milliseconds(backoff_ms_));
    retry_timer_.async_wait([this, alive = alive_](const boost::system::error_code& cancelled) {
        if (!cancelled && *alive && !stopping_) connect();
    });
}

/// Tells the supervisor who we are and what runs here; after a lost link it adopts what it knows and stops the rest.
void Agent::announce() {
    wire::WorkerReady ready;
    ready.address = address_;
    ready.host_id = host_id_;
    ready.cpu_count = cpu_count();
    ready.memory_bytes = read_memory().total;
    ready.gpus = gpus_.gpus;
    ready.gpu_error = gpus_.error;
    ready.pid = static_cast<uint32_t>(::getpid());
    link_->send(ready);
    for (const auto& [key, r] : replicas_)
        link_->send(wire::SpawnResult{r.model_uid, r.target, static_cast<uint32_t>(r.child->pid()), ""});
    for (auto& exited : std::exchange(unreported_, {})) link_->send(exited);
    log::info("worker.joined",
              {{"address", address_}, {"gpus", ready.gpus.size()}, {"cpus", ready.cpu_count}, {"again", was_registered_}, {"replicas", replicas_.size()}});
    was_registered_ = true;
    if (options_.on_registered) options_.on_registered();
    stats_timer_.cancel();
    send_stats();
}

void Agent::on_link_lost(const Error& error) {
    link_.reset();
    stats_timer_.cancel();
    pulls_->cancel_all();  // whoever asked is gone
    if (stopping_) {
        if (replicas_.empty()) io_.stop();
        return;
    }
    lost_at_ = steady_now();
    if (options_.settings.child_of_supervisor) {
        log::warn("worker.supervisor_gone", {{"reason", error.message}, {"replicas", replicas_.size()}});
        return stop(options_.orphan_grace_ms, 1);
    }
    log::warn("worker.supervisor_lost", {{"reason", error.message}, {"replicas", replicas_.size()}});
    connect();
}

void Agent::on_message(const wire::Message& message) {
    if (const auto* ask = std::get_if<wire::SpawnReplica>(&message)) return spawn(*ask);
    if (const auto* ask = std::get_if<wire::StopReplica>(&message)) return stop_replica(*ask);
    if (const auto* ask = std::get_if<wire::PullModel>(&message)) return pulls_->start(*ask);
    if (const auto* ask = std::get_if<wire::CancelPull>(&message)) return pulls_->cancel(ask->pull);
    if (const auto* ask = std::get_if<wire::ListCached>(&message)) return pulls_->list_cached(ask->ask);
    if (const auto* refused = std::get_if<wire::Refused>(&message)) {
        log::error("worker.refused", {{"reason", refused->reason}});
        return stop(options_.stop_grace_ms, 1);
    }
    log::debug("worker.message_ignored", {{"type", wire::name_of(message)}});
}

/// Why this replica may not start, if so.
std::optional<std::string> Agent::refuse_spawn(const wire::SpawnReplica& ask) {
    if (stopping_) return "worker is stopping";
    if (replicas_.size() >= limits::kReplicasMax) return "worker runs its most replicas already";
    if (!ask.target.replica || !ask.target.epoch) return "replica or epoch is missing";
    Epoch& newest = newest_[{ask.model_uid, ask.target.replica.value}];
    if (ask.target.epoch <= newest) return "stale epoch";
    newest = ask.target.epoch;
    return std::nullopt;
}

void Agent::spawn(const wire::SpawnReplica& ask) {
    const auto answer = [&](uint32_t pid, std::string error) {
        if (!error.empty())
            log::warn("replica.not_started", {{"model_uid", ask.model_uid}, {"replica", ask.target.replica.value - 1},
                                              {"epoch", ask.target.epoch.value}, {"error", error}});
        if (link_) link_->send(wire::SpawnResult{ask.model_uid, ask.target, pid, std::move(error)});
    };
    if (auto reason = refuse_spawn(ask)) return answer(0, *reason);
    // An older incarnation that still runs would hold the sockets and memory of the new one.
    for (auto& [key, r] : replicas_)
        if (r.model_uid == ask.model_uid && r.target.replica == ask.target.replica) r.child->signal(SIGKILL);

    ChildSpec spec{options_.executable, options_.argv_prefix, ask.env};
    spec.argv.insert(spec.argv.end(), ask.args.begin(), ask.args.end());
    add_host_args(spec.argv, ask.target);
    spec.env.emplace_back("BATON_LINK_SECRET", options_.settings.link_secret);
    const Key key{ask.model_uid, ask.target.replica.value, ask.target.epoch.value};
    auto child = Child::spawn(io_, spec, [this, key, alive = alive_](ChildExit exit) {
        if (*alive) on_exit(key, std::move(exit));
    });
    if (!child) return answer(0, child.error().message);
    const auto pid = static_cast<uint32_t>((*child)->pid());
    replicas_.emplace(key, Replica{ask.model_uid, ask.target, std::move(*child), nullptr, false});
    log::info("replica.started", {{"model_uid", ask.model_uid}, {"replica", ask.target.replica.value - 1},
                                  {"epoch", ask.target.epoch.value},
                                  {"role", to_string(static_cast<Role>(std::min<uint8_t>(ask.role, 2)))}, {"pid", pid}});
    answer(pid, "");
}

/// What only the worker knows: the host's folders and addresses. Epochs are unique, so a socket name is never used twice.
void Agent::add_host_args(std::vector<std::string>& argv, const wire::ReplicaTarget& target) const {
    const auto& s = options_.settings;
    const auto add = [&](const char* name, const std::string& value) {
        argv.emplace_back(name);
        argv.push_back(value);
    };
    add("--worker-socket", s.run_dir + "/worker.sock");
    add("--listen-socket", s.run_dir + "/r" + std::to_string(target.epoch.value) + ".sock");
    add("--host-id", host_id_);
    const uint64_t gpu_bytes = gpu_memory_bytes(argv);
    if (gpu_bytes > 0) add("--gpu-memory-bytes", std::to_string(gpu_bytes));
    // Peers of other hosts exist only where workers of other hosts may join.
    if (s.supervisor_unix.empty() || s.listen_for_hosts) add("--listen-ip", std::string(host_of(address_)));
    // The supervisor names the address it listens on, which may be "all interfaces"; we know one that leads there.
    if (s.supervisor_unix.empty())
        if (const auto named = std::find(argv.begin(), argv.end(), "--supervisor"); named != argv.end() && named + 1 != argv.end())
            *(named + 1) = s.supervisor_tcp;
}

/// What a replica may take of its GPU's memory: its share of the whole card. 0 where it runs on the CPU.
uint64_t Agent::gpu_memory_bytes(const std::vector<std::string>& argv) const {
    const auto skipped = static_cast<std::ptrdiff_t>(options_.argv_prefix.size());
    const auto settings = config::parse_replica_args({argv.begin() + skipped, argv.end()});
    if (!settings || settings->gpu_memory_ppm == 0) return 0;
    for (const wire::Gpu& gpu : gpus_.gpus)
        if (gpu.index == config::gpu_of(*settings)) return gpu.memory_bytes / 1'000'000 * settings->gpu_memory_ppm;
    return 0;
}

void Agent::kill_after(Replica& replica, int64_t grace_ms) {
    replica.kill_timer = std::make_unique<boost::asio::steady_timer>(io_, milliseconds(grace_ms));
    replica.kill_timer->async_wait([child = replica.child](const boost::system::error_code& cancelled) {
        if (!cancelled) child->signal(SIGKILL);
    });
}

void Agent::stop_replica(const wire::StopReplica& ask) {
    const auto it = replicas_.find({ask.model_uid, ask.target.replica.value, ask.target.epoch.value});
    if (it == replicas_.end()) {
        // Already gone: say so, since somebody waits for it.
        report({ask.model_uid, ask.target, 0, ""});
        return forget_model_if_gone(ask.model_uid);
    }
    Replica& r = it->second;
    r.stopping = true;
    r.child->signal(ask.grace_ms > 0 ? SIGTERM : SIGKILL);
    kill_after(r, ask.grace_ms);
}

void Agent::on_exit(const Key& key, ChildExit exit) {
    const auto it = replicas_.find(key);
    if (it == replicas_.end()) return;
    Replica replica = std::move(it->second);
    replicas_.erase(it);
    const bool meant = replica.stopping || stopping_;
    log::event(meant ? log::Level::kInfo : log::Level::kWarn, "replica.ended",
               {{"model_uid", replica.model_uid}, {"replica", replica.target.replica.value - 1},
                {"epoch", replica.target.epoch.value}, {"pid", replica.child->pid()}, {"status", exit.status}});
    report({replica.model_uid, replica.target, exit.status, std::move(exit.last_output)});
    if (replica.stopping) forget_model_if_gone(replica.model_uid);
    finish_if_done();
}

void Agent::report(wire::ReplicaExited exited) {
    if (link_) return link_->send(exited);
    if (unreported_.size() == kUnreportedMax) unreported_.pop_front();
    unreported_.push_back(std::move(exited));
}

/// After the last replica of a model was stopped, its snapshots and epochs mean nothing any more.
void Agent::forget_model_if_gone(const std::string& model_uid) {
    const bool runs = std::any_of(replicas_.begin(), replicas_.end(),
                                  [&](const auto& entry) { return entry.second.model_uid == model_uid; });
    if (runs) return;
    store_->model_gone(model_uid);
    std::erase_if(newest_, [&](const auto& entry) { return entry.first.first == model_uid; });
}

void Agent::stop(int64_t grace_ms, int exit_code) {
    if (stopping_) return;
    stopping_ = true;
    exit_code_ = exit_code;
    retry_timer_.cancel();
    pulls_->cancel_all();
    for (auto& [key, r] : replicas_) {
        r.child->signal(SIGTERM);
        kill_after(r, grace_ms);
    }
    finish_if_done();
}

void Agent::finish_if_done() {
    if (!stopping_ || !replicas_.empty()) return;
    log::info("worker.stopped", {{"address", address_}});
    stats_timer_.cancel();
    store_->close();
    if (!link_) return io_.stop();
    // The link's own bound: what is queued leaves within a second, then on_link_lost is called.
    link_->close();
    retry_timer_.expires_after(milliseconds(1'500));
    retry_timer_.async_wait([this, alive = alive_](const boost::system::error_code&) {
        if (*alive) io_.stop();
    });
}

void Agent::send_stats() {
    if (!link_ || stopping_) return;
    const Memory memory = read_memory();
    const auto counts = store_->counts();
    link_->send(wire::WorkerStats{cpu_.sample(), memory.used, memory.total, counts.free, counts.filling, counts.complete,
                                  counts.leased, gpu_meter_->latest()});
    stats_timer_.expires_after(milliseconds(options_.stats_ms));
    stats_timer_.async_wait([this, alive = alive_](const boost::system::error_code& cancelled) {
        if (!cancelled && *alive) send_stats();
    });
}

}  // namespace baton::worker

#include "baton/supervisor/supervisor.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "baton/http/server.hpp"
#include "auth.hpp"
#include "cluster_api.hpp"
#include "control_api.hpp"
#include "deployments.hpp"
#include "hub_environment.hpp"
#include "inference_api.hpp"
#include "local_worker.hpp"
#include "metrics.hpp"
#include "registry_api.hpp"
#include "service_report.hpp"
#include "web_routes.hpp"
#include "workers.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kWorkerStopMs = 5'000;
constexpr int64_t kWorkersPatienceMs = 10'000;  ///< for workers of other hosts that start-up deployments name
constexpr int64_t kAuthWindowMs = 300'000;  ///< in which wrong keys of one address count together

/// The supervisor process: wiring and lifetime. The control thread is the main thread.
class Supervisor {
  public:
    Supervisor(config::SupervisorSettings settings, ReadSettings read_again, ServiceManager manager)
        : settings_(std::move(settings)),
          running_(settings_),
          read_again_(std::move(read_again)),
          manager_(std::move(manager)),
          text_(std::max(1u, settings_.text_threads)),
          background_(2),
          signals_(io_, SIGTERM, SIGINT, SIGHUP),
          drain_timer_(io_),
          recorded_timer_(io_),
          workers_({[this](const std::string& a) { on_worker(a); },
                    [this](const std::string& a) {
                        pulls_.worker_lost(a);
                        deployments_->worker_lost(a);
                    },
                    [this](const wire::SpawnResult& r) { deployments_->replica_spawned(r); },
                    [this](const wire::ReplicaExited& r) { deployments_->replica_exited(r); },
                    [this](const std::string& a, const wire::WorkerStats& s) { deployments_->worker_stats(a, s); },
                    [this](const std::string& a, const wire::Message& m) { pulls_.on_message(a, m); }}),
          pulls_(io_, workers_) {}

    ~Supervisor() {
        std::error_code ec;
        if (!run_dir_.empty()) std::filesystem::remove_all(run_dir_, ec);
    }

    int run() {
        name_text_threads();
        if (auto started = start(); !started) {
            log::error("supervisor.start_failed", {{"reason", started.error().message}});
            return 1;
        }
        await_signal();
        report_->start();
        while (io_.run_one() > 0) inference_->flush_streams();
        // Links that were told to close do so now; a peer that does not read does not hold the process up.
        io_.restart();
        io_.run_for(std::chrono::milliseconds(limits::kExitCloseMs));
        server_->close();
        text_.join();
        background_.join();
        log::info("supervisor.stopped");
        return exit_code_;
    }

  private:
    /// So that one can see what a busy thread does. Returns when every thread has its name: a pool that ends earlier would
    /// drop the names it has not begun with, and the threads that wait for those would never end.
    void name_text_threads() {
        const uint32_t threads = std::max(1u, settings_.text_threads);
        const auto all = std::make_shared<std::latch>(threads + 1);
        for (uint32_t i = 0; i < threads; ++i) {
            boost::asio::post(text_, [all] {
                ::prctl(PR_SET_NAME, "baton-text");
                all->arrive_and_wait();  // or one thread would take two of these
            });
        }
        all->arrive_and_wait();
    }

    Expected<void> start() {
        BATON_TRY(make_dirs());
        secret_ = settings_.link_secret.empty() ? random_hex(32) : settings_.link_secret;
        net::Endpoint at{run_dir_ + "/control.sock", settings_.link_address};
        BATON_TRY_ASSIGN(listener_, net::Listener::listen(io_, at, {"supervisor", "supervisor", secret_},
                                                          [this](std::shared_ptr<net::Connection> link) { on_link(std::move(link)); }));
        registry_ = std::make_unique<registry::Registry>(settings_.state_dir + "/registrations.json");
        deployments_ = std::make_unique<Deployments>(Deployments::Services{io_, background_, settings_, workers_, models_, *registry_, pulls_, at.unix_path, [this](std::string reason) { fatal(std::move(reason)); }});
        inference_ = std::make_unique<InferenceApi>(InferenceApi::Services{io_, text_, settings_, models_, [this](const std::string& uid) { return deployments_->find(uid); }});
        if (!settings_.auth_file.empty()) {
            const Bans::Rule rule{settings_.auth_failures_max, kAuthWindowMs, int64_t{settings_.auth_ban_seconds} * 1000};
            BATON_TRY_ASSIGN(auth_, Auth::load(settings_.auth_file, rule));
        }
        control_ = std::make_unique<ControlApi>(ControlApi::Services{io_, settings_, *deployments_});
        cluster_ = std::make_unique<ClusterApi>(ClusterApi::Services{io_, background_, settings_, *deployments_, workers_, auth_.get(), [this] { return advertised_http(settings_, server_->address()); },
                                                                     [this] { return draining_; },
                                                                     [this] { return render_metrics(*deployments_, workers_, auth_.get(), std::time(nullptr) - started_unix_, tls_facts()); },
                                                                     [this] { boost::asio::post(io_, [this] { begin_stop(); }); }});
        inference_->add_routes(routes_);
        control_->add_routes(routes_);
        cluster_->add_routes(routes_);
        report_ = std::make_unique<ServiceReport>(std::move(manager_), ServiceReport::Services{io_, text_, [this] { return cluster_->not_ready(); }, [this] { return summary(); }});
        registry_api_ = std::make_unique<RegistryApi>(RegistryApi::Services{io_, background_, *registry_, pulls_});
        registry_api_->add_routes(routes_);
        add_web_routes(routes_);
        http::ServerOptions options;
        options.host = settings_.host;
        options.port = settings_.port;
        options.threads = settings_.http_threads;
        options.tls_certificate = settings_.tls_certificate;
        options.tls_key = settings_.tls_key;
        options.admin_keys = settings_.api_keys;
        options.inference_keys = settings_.inference_api_keys;
        if (auth_) {
            options.authenticate = [auth = auth_.get()](std::string_view key, const std::string& remote) { return auth->check(key, remote); };
            options.on_exchange_end = [auth = auth_.get()](const http::Permissions& rights, int64_t ms) {
                if (rights.limited_key) auth->observe_key_request(ms);
            };
        }
        options.cors_origins = settings_.cors_origins;
        options.open_paths = {"/health", "/ready", "/status", "/token", "/token/refresh", "/v1/address", "/v1/cluster/auth", "/v1/cluster/ui_config",
                              "/v1/models/families", "/v1/models/prompts", "/v1/models/vllm-supported"};
        for (std::string& path : web_paths()) options.open_paths.push_back(std::move(path));
        BATON_TRY_ASSIGN(server_, http::Server::start(std::move(options), [this](std::shared_ptr<http::Exchange> e) { routes_(std::move(e)); }));
        log::info("supervisor.listening", {{"address", server_->address()}, {"state_dir", settings_.state_dir}, {"scheme", server_->certificate() ? "https" : "http"}});
        if (const auto certificate = server_->certificate()) tell_certificate(*certificate);
        if (settings_.host != "127.0.0.1" && settings_.host != "localhost" && settings_.host != "::1" && settings_.api_keys.empty() && settings_.inference_api_keys.empty() && !auth_)
            log::warn("supervisor.open_to_the_network", {{"advice", "anyone who reaches this address can use it; set api_keys"}});
        if (settings_.local_worker) start_local_worker();
        return {};
    }

    Expected<void> make_dirs() {
        std::error_code ec;
        std::filesystem::create_directories(settings_.state_dir, ec);
        if (ec) return fail(ErrorCode::kIo, "cannot create the state directory " + settings_.state_dir + ": " + ec.message(), "state_dir");
        lock_.reset(::open((settings_.state_dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        if (!lock_ || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
            return fail(ErrorCode::kIo, "the state directory " + settings_.state_dir + " is in use by another baton (or not writable); choose another with --state-dir", "state_dir");
        // Socket paths are short by law (107 bytes): they live apart from the state, in a private folder.
        const char* runtime = std::getenv("XDG_RUNTIME_DIR");
        std::string base = runtime != nullptr && std::strlen(runtime) < 60 && ::access(runtime, W_OK) == 0 ? runtime : "/tmp";
        std::string pattern = base + "/baton-XXXXXX";
        if (::mkdtemp(pattern.data()) == nullptr) return fail(ErrorCode::kIo, "cannot create a folder under " + base + ": " + std::strerror(errno));
        run_dir_ = pattern;
        remember_run_dir();
        return {};
    }

    /// A supervisor that was killed could not remove its folder: the next one on the same state does.
    void remember_run_dir() {
        const std::string path = settings_.state_dir + "/run_dir";
        std::string last;
        std::getline(std::ifstream(path), last);
        std::error_code ec;
        if (std::filesystem::path(last).filename().string().rfind("baton-", 0) == 0 && std::filesystem::exists(last + "/control.sock", ec))
            std::filesystem::remove_all(last, ec);
        std::ofstream(path) << run_dir_ << '\n';
    }

    void start_local_worker() {
        config::WorkerSettings w;
        w.supervisor_unix = run_dir_ + "/control.sock";
        w.run_dir = run_dir_;
        w.advertise_ip = advertised_ip(settings_);
        w.listen_for_hosts = !settings_.link_address.empty();
        w.snapshot_bytes = settings_.snapshot_bytes;
        w.child_of_supervisor = true;
        w.log_format = settings_.log_format;
        w.log_level = settings_.log_level;
        local_worker_ = std::make_unique<LocalWorker>(io_, std::move(w), secret_);
        local_worker_->start();
    }

    void on_link(std::shared_ptr<net::Connection> link) {
        const std::string kind = link->peer().kind;
        if (kind == "worker") return workers_.connected(std::move(link));
        if (kind == "replica") return deployments_->replica_connected(std::move(link));
        link->close();
    }

    /// Start-up deployments begin when the local worker is there, where there is one, and the other workers that they name, for which they
    /// wait a while.
    void on_worker(const std::string& address) {
        deployments_->worker_registered(address);
        if (recorded_started_) return;
        const auto& all = workers_.all();
        if (settings_.local_worker && std::none_of(all.begin(), all.end(), [](const auto& w) { return w.second.local; })) return;
        const TimeMs now = steady_now();
        if (recorded_by_.ms == 0) recorded_by_ = now + kWorkersPatienceMs;
        // A worker that outlived the last supervisor names its replicas right after it registers; then they are adopted.
        const int64_t left_ms = std::max<int64_t>(0, recorded_by_ - now);
        const int64_t wait_ms = deployments_->awaits_workers() ? left_ms : settings_.local_worker ? 0 : std::min<int64_t>(left_ms, 500);
        recorded_timer_.expires_after(std::chrono::milliseconds(wait_ms));
        recorded_timer_.async_wait([this](boost::system::error_code ec) {
            if (ec || std::exchange(recorded_started_, true)) return;
            deployments_->start_recorded();
        });
    }

    void fatal(std::string reason) {
        if (draining_) return;  // what a stop cut short is no fault
        log::error("supervisor.fatal", {{"reason", reason}});
        std::fprintf(stderr, "baton: %s\n", reason.c_str());
        exit_code_ = 1;
        boost::asio::post(io_, [this] { begin_stop(); });
    }

    void await_signal() {
        signals_.async_wait([this](boost::system::error_code ec, int signal) {
            if (ec) return;
            log::info("supervisor.signal", {{"signal", signal}});
            if (signal == SIGHUP) {
                reload();
                return await_signal();
            }
            if (draining_) drain_until_ = steady_now();  // a second signal ends it now
            else begin_stop();
            await_signal();
        });
    }

    /// What became of a file that SIGHUP reads again.
    enum class Reread : uint8_t { kNot, kTaken, kRefused };

    /// SIGHUP: keys, users, TLS's files and the log level are taken over; what else has changed waits for the next start.
    void reload() {
        report_->reloading();
        boost::asio::post(background_, [this] {
            const Reread users = reload_users();
            Expected<config::SupervisorSettings> now = read_again_ ? read_again_() : Expected<config::SupervisorSettings>(settings_);
            const Reread certificate = now ? reload_certificate(*now) : Reread::kNot;
            boost::asio::post(io_, [this, users, certificate, now = std::move(now)] {
                if (now) take_over(*now, users, certificate);
                else log::error("settings.reload_failed", {{"reason", now.error().message}});
                report_->reloaded();
            });
        });
    }

    Reread reload_users() {
        if (!auth_) return Reread::kNot;
        const auto loaded = auth_->reload();
        if (!loaded) log::error("auth.reload_failed", {{"reason", loaded.error().message}});
        return loaded ? Reread::kTaken : Reread::kRefused;
    }

    /// The files may be new where their names are not.
    Reread reload_certificate(const config::SupervisorSettings& now) {
        if (settings_.tls_certificate.empty() || now.tls_certificate.empty()) return Reread::kNot;  // whether TLS is spoken is settled at the start
        const auto loaded = server_->load_certificate(now.tls_certificate, now.tls_key);
        if (loaded) tell_certificate(*loaded);
        else log::error("tls.reload_failed", {{"reason", loaded.error().message}});
        return loaded ? Reread::kTaken : Reread::kRefused;
    }

    /// For /metrics; nothing where plain HTTP is spoken.
    [[nodiscard]] std::optional<TlsFacts> tls_facts() const {
        const auto certificate = server_->certificate();
        if (!certificate) return std::nullopt;
        return TlsFacts{certificate->not_after, server_->stats().tls_handshakes_failed};
    }

    static void tell_certificate(const http::CertificateFacts& certificate) {
        const int64_t now = std::time(nullptr);
        std::string names;
        for (const std::string& name : certificate.names) names += (names.empty() ? "" : ",") + name;
        log::info("tls.certificate", {{"subject", certificate.subject}, {"names", names}, {"days_left", (certificate.not_after - now) / 86'400}, {"sha256", certificate.sha256}});
        if (const std::string why = certificate.warning(now); !why.empty()) log::warn("tls.certificate_bad", {{"reason", why}, {"advice", "renew it and send SIGHUP"}});
    }

    void take_over(const config::SupervisorSettings& now, Reread users, Reread certificate) {
        const bool certified = certificate == Reread::kTaken;
        const auto has_keys = [](const config::SupervisorSettings& s) { return !s.api_keys.empty() || !s.inference_api_keys.empty(); };
        // Whether keys are asked for at all is settled at the start: clients have been told.
        const bool keys = has_keys(now) == has_keys(running_);
        std::string taken, waiting;
        std::string refused = users == Reread::kRefused ? "auth_file" : "";
        if (certificate == Reread::kRefused) refused += refused.empty() ? "tls_certificate,tls_key" : ",tls_certificate,tls_key";
        for (const std::string& key : config::changed_settings(running_, now)) {
            const bool is_key = key == "api_keys" || key == "inference_api_keys";
            const bool is_tls = key == "tls_certificate" || key == "tls_key";
            if (is_tls && certificate == Reread::kRefused) continue;
            std::string& list = key == "log_level" || (is_key && keys) || (is_tls && certified) ? taken : waiting;
            list += (list.empty() ? "" : ",") + key;
        }
        log::Level level = log::Level::kInfo;
        if (log::parse_level(now.log_level, level)) log::set_level(level);
        running_.log_level = now.log_level;
        if (certified) {
            running_.tls_certificate = now.tls_certificate;
            running_.tls_key = now.tls_key;
        }
        if (keys) {
            server_->set_keys(now.api_keys, now.inference_api_keys);
            running_.api_keys = now.api_keys;
            running_.inference_api_keys = now.inference_api_keys;
        }
        if (refused.empty()) log::info("settings.reloaded", {{"taken", taken}, {"at_the_next_start", waiting}});
        else log::warn("settings.reloaded", {{"taken", taken}, {"at_the_next_start", waiting}, {"refused", refused}});  // what was in use stays
    }

    /// SIGTERM: no new requests; running ones may finish within the shutdown timeout; then replicas and worker end.
    void begin_stop() {
        if (draining_) return;
        draining_ = true;
        inference_->set_draining();
        drain_until_ = steady_now() + settings_.shutdown_timeout_ms;
        report_->stopping("draining " + std::to_string(inference_->running()) + " requests", settings_.shutdown_timeout_ms + 2 * kWorkerStopMs);
        log::info("supervisor.draining", {{"running", inference_->running()}});
        drain();
    }

    void drain() {
        if (inference_->running() > 0 && steady_now() < drain_until_) {
            drain_timer_.expires_after(std::chrono::milliseconds(20));
            drain_timer_.async_wait([this](boost::system::error_code ec) {
                if (!ec) drain();
            });
            return;
        }
        inference_->abort_all("the server is shutting down");
        server_->stop_accepting();
        deployments_->shut_down([this] {
            workers_.expect_ends();
            if (!local_worker_) return finish();
            local_worker_->stop(kWorkerStopMs, [this] { finish(); });
        });
    }

    /// One line for the service manager.
    [[nodiscard]] std::string summary() const {
        size_t models = 0, replicas = 0;
        for (const auto& [uid, d] : deployments_->all()) {
            if (d->state() != DeploymentState::kReady) continue;
            ++models;
            replicas += d->slots().size();
        }
        return server_->address() + ": " + std::to_string(models) + " models, " + std::to_string(replicas) + " replicas, " + std::to_string(inference_->running()) + " requests running";
    }

    void finish() {
        signals_.cancel();
        listener_.reset();
        workers_.close_all();
        io_.stop();
    }

    const config::SupervisorSettings settings_;
    config::SupervisorSettings running_;  ///< with what SIGHUP has changed
    const ReadSettings read_again_;
    ServiceManager manager_;
    std::string run_dir_;
    std::string secret_;
    UniqueFd lock_;
    int64_t started_unix_ = std::time(nullptr);
    boost::asio::io_context io_{1};
    boost::asio::thread_pool text_;
    boost::asio::thread_pool background_;
    boost::asio::signal_set signals_;
    boost::asio::steady_timer drain_timer_, recorded_timer_;
    ModelDirectory models_;
    Workers workers_;
    ModelPulls pulls_;
    std::unique_ptr<registry::Registry> registry_;
    std::unique_ptr<net::Listener> listener_;
    std::unique_ptr<Deployments> deployments_;
    std::unique_ptr<InferenceApi> inference_;
    std::unique_ptr<Auth> auth_;
    std::unique_ptr<ControlApi> control_;
    std::unique_ptr<ClusterApi> cluster_;
    std::unique_ptr<RegistryApi> registry_api_;
    std::unique_ptr<ServiceReport> report_;
    http::Router routes_;
    std::unique_ptr<LocalWorker> local_worker_;
    std::unique_ptr<http::Server> server_;
    bool draining_ = false;
    int exit_code_ = 0;
    bool recorded_started_ = false;
    TimeMs recorded_by_{};
    TimeMs drain_until_{};
};

}  // namespace

int run(const config::SupervisorSettings& settings, ReadSettings read_again) {
    ServiceManager manager = ServiceManager::from_environment();  // while there is one thread
    log::Level level = log::Level::kInfo;
    (void)log::parse_level(settings.log_level, level);
    log::init(level, settings.log_format == "json" ? log::Format::kJson : log::Format::kText, {});
    ::signal(SIGPIPE, SIG_IGN);
    export_hub_settings(settings);
    Supervisor supervisor(settings, std::move(read_again), std::move(manager));
    return supervisor.run();
}

}  // namespace baton::supervisor

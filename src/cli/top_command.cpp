// `baton top`: what a server does now, on a terminal.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cmath>
#include <thread>

#include "cli/commands.hpp"
#include "cli/metrics_text.hpp"

namespace baton::cli {
namespace {

using Labels = MetricsText::Labels;

/// The terminal without echo and line editing, on its second screen; as it was when this ends.
class FullScreen {
  public:
    FullScreen() {
        keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
        termios raw = before_;
        raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
        std::fputs("\x1b[?1049h\x1b[?25l", stdout);
    }
    ~FullScreen() {
        std::fputs("\x1b[?25h\x1b[?1049l", stdout);
        std::fflush(stdout);
        if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
    }
    FullScreen(const FullScreen&) = delete;
    FullScreen& operator=(const FullScreen&) = delete;

    static void draw(const std::string& text) {
        std::string out = "\x1b[H";
        for (const char c : text) out += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
        std::fputs((out + "\x1b[J").c_str(), stdout);
        std::fflush(stdout);
    }

    /// True when `q` was typed within the time.
    [[nodiscard]] bool quit_within(int64_t ms) const {
        pollfd in{keys_ ? STDIN_FILENO : -1, POLLIN, 0};
        if (::poll(&in, 1, static_cast<int>(ms)) <= 0) return false;
        char key = 0;
        return ::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q';
    }

  private:
    termios before_{};
    bool keys_ = false;
};

/// One look at the server.
struct Look {
    MetricsText metrics;
    Json instances;
    std::chrono::steady_clock::time_point at;
};

Expected<Look> look(ClientSession& session) {
    BATON_TRY_ASSIGN(const std::string text, session.text("/metrics"));
    BATON_TRY_ASSIGN(Json instances, session.ask("GET", "/v1/models/instances"));
    return Look{MetricsText(text), std::move(instances), std::chrono::steady_clock::now()};
}

/// What happened between two looks.
class Change {
  public:
    Change(const Look& before, const Look& now)
        : before_(before), now_(now), seconds_(std::max(1e-3, std::chrono::duration<double>(now.at - before.at).count())) {}

    [[nodiscard]] std::optional<double> rate(const std::string& name, const Labels& where) const {
        const auto grown = growth(before_.metrics, now_.metrics, name, where);
        return grown ? std::optional(*grown / seconds_) : std::nullopt;
    }
    /// Growth of one counter for each of another; nothing where the other stood still.
    [[nodiscard]] std::optional<double> each(const std::string& name, const std::string& of, const Labels& where) const {
        const auto part = growth(before_.metrics, now_.metrics, name, where), whole = growth(before_.metrics, now_.metrics, of, where);
        return part && whole && *whole > 0 ? std::optional(*part / *whole) : std::nullopt;
    }
    [[nodiscard]] std::optional<double> quantile_of(const std::string& name, double q, const Labels& where) const {
        return quantile(before_.metrics, now_.metrics, name, q, where);
    }
    /// Mean of what a histogram took in.
    [[nodiscard]] std::optional<double> mean_of(const std::string& name, const Labels& where) const { return each(name + "_sum", name + "_count", where); }
    [[nodiscard]] std::optional<double> value(const std::string& name, const Labels& where) const { return now_.metrics.sum(name, where); }

  private:
    const Look& before_;
    const Look& now_;
    double seconds_;
};

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json row_of(const Json& instance, const Change& change) {
    const std::string uid = text_of(instance, "model_uid");
    const Labels of{{"model_uid", uid}};
    const auto stage = [&](const char* name, double q) {
        return number_or_null(change.quantile_of("baton_stage_seconds", q, {{"model_uid", uid}, {"stage", name}}));
    };
    return {{"model_uid", uid},
            {"status", text_of(instance, "status")},
            {"requests_per_second", number_or_null(change.rate("baton_requests_total", of))},
            {"running", number_or_null(change.value("baton_requests_running", of))},
            {"waiting", number_or_null(change.value("baton_requests_waiting", of))},
            {"queued", number_or_null(change.value("baton_queue_depth", of))},
            {"ttft_p50_s", number_or_null(change.quantile_of("baton_ttft_seconds", 0.5, of))},
            {"ttft_p95_s", number_or_null(change.quantile_of("baton_ttft_seconds", 0.95, of))},
            {"queue_p50_s", stage("queue", 0.5)},
            {"queue_p95_s", stage("queue", 0.95)},
            {"prefill_p50_s", stage("prefill", 0.5)},
            {"prefill_p95_s", stage("prefill", 0.95)},
            {"tpot_p50_s", number_or_null(change.quantile_of("baton_tpot_seconds", 0.5, of))},
            {"tpot_p95_s", number_or_null(change.quantile_of("baton_tpot_seconds", 0.95, of))},
            {"output_tokens_per_second", number_or_null(change.rate("baton_generated_tokens_total", of))},
            {"prompt_tokens_per_second", number_or_null(change.rate("baton_prefill_tokens_total", of))},
            {"cached_share", number_or_null(change.each("baton_cached_tokens_total", "baton_prompt_tokens_total", of))},
            {"handoffs_per_second", number_or_null(change.rate("baton_handoffs_total", of))},
            {"handoff_p50_s", stage("handoff", 0.5)},
            {"handoff_p95_s", stage("handoff", 0.95)},
            {"handoff_exposed_s", number_or_null(change.mean_of("baton_stage_seconds", {{"model_uid", uid}, {"stage", "handoff"}}))},
            {"handoff_added_s", number_or_null(change.mean_of("baton_handoff_added_seconds", of))}};
}

Json replica_row(const std::string& uid, const Json& replica, const Change& change) {
    const std::string id = text_of(replica, "replica_id");
    const Labels of{{"model_uid", uid}, {"replica", id}};
    const auto blocks = change.value("baton_kv_blocks", of);
    double held = 0;
    for (const char* state : {"used", "offered"}) held += change.value("baton_kv_blocks", {{"model_uid", uid}, {"replica", id}, {"state", state}}).value_or(0);
    const Json* gpus = member_of(replica, "gpu_idx");
    return {{"replica_uid", text_of(replica, "replica_uid")},
            {"role", text_of(replica, "role")},
            {"status", text_of(replica, "status")},
            {"device", gpus == nullptr || gpus->empty() ? "CPU" : "GPU " + gpus->dump()},
            {"worker_address", text_of(replica, "worker_address")},
            {"running", number_or_null(change.value("baton_replica_running", of))},
            {"waiting", number_or_null(change.value("baton_replica_waiting", of))},
            {"prompt_tokens_per_second", number_or_null(change.rate("baton_prefill_tokens_total", of))},
            {"output_tokens_per_second", number_or_null(change.rate("baton_generated_tokens_total", of))},
            {"batch", number_or_null(change.mean_of("baton_engine_step_sequences", of))},
            {"kv_in_use", number_or_null(blocks && *blocks > 0 ? std::optional(held / *blocks) : std::nullopt)}};
}

Json report(const Look& before, const Look& now) {
    const Change change(before, now);
    Json models = Json::array();
    for (const Json& instance : now.instances) {
        Json row = row_of(instance, change);
        row["replicas"] = Json::array();
        if (const Json* replicas = member_of(instance, "replica_statuses"))
            for (const Json& r : *replicas) row["replicas"].push_back(replica_row(text_of(instance, "model_uid"), r, change));
        models.push_back(std::move(row));
    }
    return {{"uptime_s", number_or_null(change.value("baton_uptime_seconds", {}))}, {"workers", number_or_null(change.value("baton_workers", {}))}, {"models", models}};
}

std::string plain(const Json& row, const char* key, int digits = 0) {
    const Json& value = row.at(key);
    if (!value.is_number()) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", digits, value.get<double>());
    return text;
}

/// Milliseconds of seconds.
std::string ms(const Json& row, const char* key) {
    const Json& value = row.at(key);
    if (!value.is_number()) return "-";
    char text[32];
    const double v = value.get<double>() * 1000;
    std::snprintf(text, sizeof text, v < 10 ? "%.2f" : "%.0f", v);
    return text;
}

std::string percent(const Json& row, const char* key) {
    return row.at(key).is_number() ? std::to_string(std::lround(row.at(key).get<double>() * 100)) + "%" : "-";
}

std::string screen(const std::string& endpoint, const Json& all, size_t columns) {
    Table models{{{"MODEL"}, {"STATE"}, {"REQ/S", true}, {"RUN", true}, {"QUEUE", true}, {"TTFT MS P50", true}, {"P95", true}, {"QUEUE MS", true}, {"PREFILL MS", true},
                  {"TPOT MS P50", true}, {"P95", true}, {"TOK/S", true}, {"PROMPT/S", true}, {"CACHED", true}, {"HAND-OFFS/S", true}, {"EXPOSED MS", true}},
                 {}};
    Table replicas{{{"REPLICA"}, {"ROLE"}, {"STATE"}, {"DEVICE"}, {"RUN", true}, {"WAIT", true}, {"BATCH", true}, {"PROMPT/S", true}, {"TOK/S", true}, {"KV", true}, {"WORKER"}}, {}};
    for (const Json& m : all.at("models")) {
        models.rows.push_back({text_of(m, "model_uid"), text_of(m, "status"), plain(m, "requests_per_second", 1), plain(m, "running"), plain(m, "queued"), ms(m, "ttft_p50_s"),
                               ms(m, "ttft_p95_s"), ms(m, "queue_p50_s"), ms(m, "prefill_p50_s"), ms(m, "tpot_p50_s"), ms(m, "tpot_p95_s"), plain(m, "output_tokens_per_second"), plain(m, "prompt_tokens_per_second"),
                               percent(m, "cached_share"), plain(m, "handoffs_per_second", 1), ms(m, "handoff_exposed_s")});
        for (const Json& r : m.at("replicas"))
            replicas.rows.push_back({text_of(r, "replica_uid"), text_of(r, "role"), text_of(r, "status"), text_of(r, "device"), plain(r, "running"), plain(r, "waiting"), plain(r, "batch", 1),
                                     plain(r, "prompt_tokens_per_second"), plain(r, "output_tokens_per_second"), percent(r, "kv_in_use"), text_of(r, "worker_address")});
    }
    std::string text = endpoint + "  up " + plain(all, "uptime_s") + " s, workers " + plain(all, "workers") + "\n\n";
    if (models.rows.empty()) return text + "no model is running\n";
    return text + format_table(models, columns) + "\n" + format_table(replicas, columns);
}

}  // namespace

int run_top(const TopOptions& options) {
    ClientSession session(options.server);
    if (!session.ok()) return kFailed;
    const bool live = !options.once && !options.json && is_terminal(STDOUT_FILENO) && is_terminal(STDIN_FILENO);
    auto before = look(session);
    if (!before) {
        complain(before.error().message);
        return kFailed;
    }
    if (!live) {
        std::this_thread::sleep_for(std::chrono::milliseconds(options.interval_ms));
        const auto now = look(session);
        if (!now) {
            complain(now.error().message);
            return kFailed;
        }
        const Json all = report(*before, *now);
        if (options.json) return print_json(all);
        std::printf("%s", screen(session.endpoint(), all, is_terminal(STDOUT_FILENO) ? terminal_columns(STDOUT_FILENO, 80) : 0).c_str());
        return flush_output() ? kDone : kFailed;
    }
    const InterruptWatch watch(InterruptWatch::Of::kEveryEnd);
    const FullScreen full;
    FullScreen::draw(session.endpoint() + "\n");
    while (!InterruptWatch::pending() && !full.quit_within(options.interval_ms)) {
        auto now = look(session);
        if (!now) {
            FullScreen::draw(session.endpoint() + "\n\n" + printable(now.error().message) + "\n");
            continue;  // it may come back
        }
        const std::string text = screen(session.endpoint(), report(*before, *now), terminal_columns(STDOUT_FILENO, 80));
        FullScreen::draw(text + "\nq ends this\n");
        before = std::move(now);
    }
    return kDone;
}

}  // namespace baton::cli

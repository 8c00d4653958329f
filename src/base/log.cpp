#include "baton/base/log.hpp"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "baton/base/utf8.hpp"

namespace baton::log {
namespace {

std::atomic<uint64_t> g_lost{0};

/// Writes to stderr without ever waiting: what a full pipe does not take is dropped and counted.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  protected:
    void sink_it_(const spdlog::details::log_msg& msg) override {
        spdlog::memory_buf_t buf;
        formatter_->format(msg, buf);
        // Lines up to PIPE_BUF go in whole or not at all when the pipe does not block.
        const ssize_t n = ::write(STDERR_FILENO, buf.data(), buf.size());
        if (n != static_cast<ssize_t>(buf.size())) g_lost.fetch_add(1, std::memory_order_relaxed);
    }
    void flush_() override {}
};

struct State {
    std::shared_ptr<spdlog::logger> logger;
    std::string process_fields;  // already rendered
    Format format = Format::kText;
};

std::string escape_json(std::string_view s) {
    std::string out;
    out.reserve(s.size() + 2);
    for (size_t i = 0; i < s.size();) {
        const char c = s[i];
        const auto u = static_cast<unsigned char>(c);
        const size_t length = valid_utf8_length(s, i);
        if (length == 0) {
            out += "\\ufffd";
        } else if (c == '"' || c == '\\') {
            out.push_back('\\');
            out.push_back(c);
        } else if (u < 0x20 || u == 0x7f) {
            char esc[8];
            std::snprintf(esc, sizeof esc, "\\u%04x", u);
            out += esc;
        } else {
            out.append(s, i, length);
        }
        i += std::max(length, size_t{1});
    }
    return out;
}

bool needs_quotes(std::string_view s) {
    if (s.empty()) return true;
    for (const char c : s) {
        const auto u = static_cast<unsigned char>(c);
        if (u <= 0x20 || u == 0x7f || c == '"' || c == '=' || c == '\\') return true;
    }
    return false;
}

void append_fields(std::string& line, Format format, std::initializer_list<Field> fields) {
    for (const Field& f : fields) {
        if (f.key.empty()) continue;
        if (format == Format::kJson) {
            line += ",\"" + std::string(f.key) + "\":";
            line += f.quoted ? "\"" + escape_json(f.value) + "\"" : f.value;
        } else {
            line += ' ';
            line += f.key;
            line += '=';
            line += needs_quotes(f.value) ? '"' + escape_json(f.value) + '"' : f.value;
        }
    }
}

State& state() {
    static State s;
    static std::once_flag once;
    std::call_once(once, [] {
        s.logger = std::make_shared<spdlog::logger>("baton", std::make_shared<StderrSink>());
        s.logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
        s.logger->set_level(spdlog::level::info);
    });
    return s;
}

spdlog::level::level_enum to_spdlog(Level level) {
    switch (level) {
        case Level::kTrace: return spdlog::level::trace;
        case Level::kDebug: return spdlog::level::debug;
        case Level::kInfo: return spdlog::level::info;
        case Level::kWarn: return spdlog::level::warn;
        case Level::kError: return spdlog::level::err;
    }
    return spdlog::level::info;
}

}  // namespace

Field::Field(std::string_view k, double v) : key(k) {
    char buf[32];
    std::snprintf(buf, sizeof buf, "%.6g", v);
    value = buf;
    quoted = !std::isfinite(v);  // JSON has no word for those
}

void init(Level level, Format format, std::initializer_list<Field> process_fields) {
    State& s = state();
    s.format = format;
    s.process_fields.clear();
    append_fields(s.process_fields, format, process_fields);
    if (format == Format::kJson)
        s.logger->set_pattern("{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",%v}");
    s.logger->set_level(to_spdlog(level));
    // Only a pipe can block us; a terminal or a file is left as it is, since its flags belong to its other users too.
    const int flags = ::fcntl(STDERR_FILENO, F_GETFL);
    if (flags >= 0 && ::lseek(STDERR_FILENO, 0, SEEK_CUR) < 0 && errno == ESPIPE && ::isatty(STDERR_FILENO) == 0)
        ::fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK);
}

void set_level(Level level) { state().logger->set_level(to_spdlog(level)); }

bool parse_level(std::string_view text, Level& out) {
    static constexpr std::pair<std::string_view, Level> kNames[] = {{"trace", Level::kTrace},
                                                                    {"debug", Level::kDebug},
                                                                    {"info", Level::kInfo},
                                                                    {"warn", Level::kWarn},
                                                                    {"error", Level::kError}};
    for (const auto& [name, level] : kNames)
        if (name == text) {
            out = level;
            return true;
        }
    return false;
}

void event(Level level, std::string_view name, std::initializer_list<Field> fields) {
    try {
        State& s = state();
        if (!s.logger->should_log(to_spdlog(level))) return;
        std::string line;
        if (s.format == Format::kJson)
            line = "\"event\":\"" + escape_json(name) + "\"";
        else
            line = name;
        append_fields(line, s.format, fields);
        line += s.process_fields;
        s.logger->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
    } catch (...) {
        g_lost.fetch_add(1, std::memory_order_relaxed);
    }
}

uint64_t lost_lines() { return g_lost.load(std::memory_order_relaxed); }

}  // namespace baton::log

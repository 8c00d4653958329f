#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace baton::log {

enum class Level : uint8_t { kTrace, kDebug, kInfo, kWarn, kError };
enum class Format : uint8_t { kText, kJson };

/// One `key=value` of a log line. Strings are quoted where needed and control characters escaped, so that no
/// user string can forge a line. One with an empty key is left out: for what a line says only at times.
/// In JSON numbers and booleans stand without quotes, and what is no UTF-8 is replaced.
struct Field {
    std::string_view key;
    std::string value;
    bool quoted = true;  ///< in JSON
    Field(std::string_view k, std::string_view v) : key(k), value(v) {}
    Field(std::string_view k, const char* v) : key(k), value(v) {}
    Field(std::string_view k, const std::string& v) : key(k), value(v) {}
    Field(std::string_view k, bool v) : key(k), value(v ? "true" : "false"), quoted(false) {}
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    Field(std::string_view k, T v) : key(k), value(std::to_string(v)), quoted(false) {}
    Field(std::string_view k, double v);
};

/// Names every line of this process carries, e.g. `role` and `replica`. Call once, before threads start.
void init(Level level, Format format, std::initializer_list<Field> process_fields);
void set_level(Level level);
[[nodiscard]] bool parse_level(std::string_view text, Level& out);

/// Writes one line `event key=value …` to stderr. Any thread. Never blocks a request and never throws: a line that
/// cannot be written is counted.
void event(Level level, std::string_view name, std::initializer_list<Field> fields = {});
inline void debug(std::string_view name, std::initializer_list<Field> f = {}) { event(Level::kDebug, name, f); }
inline void info(std::string_view name, std::initializer_list<Field> f = {}) { event(Level::kInfo, name, f); }
inline void warn(std::string_view name, std::initializer_list<Field> f = {}) { event(Level::kWarn, name, f); }
inline void error(std::string_view name, std::initializer_list<Field> f = {}) { event(Level::kError, name, f); }
[[nodiscard]] uint64_t lost_lines();

/// Evidence that a hand-off happened; tests and operators look for these names.
inline constexpr std::string_view kKvStaged = "kv.staged";
inline constexpr std::string_view kKvLoaded = "kv.loaded";
inline constexpr std::string_view kKvFallback = "kv.fallback";

}  // namespace baton::log

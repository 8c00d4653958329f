#pragma once

#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

/// Command lines of baton's own processes as tables of fields: `--name value` pairs, written and read by one table.
namespace baton::config {

template <class S>
using FieldPointer = std::variant<std::string S::*, bool S::*, uint32_t S::*, uint64_t S::*, int64_t S::*, uint16_t S::*,
                                  Role S::*, ReplicaId S::*, Epoch S::*>;

template <class S>
struct Argument {
    std::string_view name;  ///< with the dashes
    FieldPointer<S> field;
    bool always;            ///< written even where it is the default
    std::vector<std::string_view> choices;  ///< of a string; empty: any

    Argument(std::string_view n, FieldPointer<S> f, bool a = false) : name(n), field(f), always(a) {}
    Argument(std::string_view n, FieldPointer<S> f, bool a, std::vector<std::string_view> c)
        : name(n), field(f), always(a), choices(std::move(c)) {}
};

/// Whole decimal number, nothing else.
template <class T>
[[nodiscard]] bool parse_number(std::string_view text, T& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

inline std::string show(const std::string& v) { return v; }
inline std::string show(bool v) { return v ? "true" : "false"; }
inline std::string show(Role v) { return to_string(v); }
template <class Tag>
std::string show(Id<Tag> v) { return std::to_string(v.value); }
template <std::integral T>
    requires(!std::same_as<T, bool>)
std::string show(T v) { return std::to_string(v); }

inline bool read(std::string_view text, std::string& v) {
    v = text;
    return true;
}
inline bool read(std::string_view text, bool& v) {
    v = text == "true";
    return v || text == "false";
}
inline bool read(std::string_view text, Role& v) {
    for (const Role r : {Role::kHybrid, Role::kPrefill, Role::kDecode})
        if (text == to_string(r)) {
            v = r;
            return true;
        }
    return false;
}
template <class Tag>
bool read(std::string_view text, Id<Tag>& v) { return parse_number(text, v.value); }
template <std::integral T>
    requires(!std::same_as<T, bool>)
bool read(std::string_view text, T& v) { return parse_number(text, v); }

/// Writes what differs from `S{}`, and what is marked `always`.
template <class S>
std::vector<std::string> write_arguments(std::span<const Argument<S>> table, const S& settings) {
    const S defaults{};
    std::vector<std::string> out;
    for (const auto& a : table)
        std::visit(
            [&](auto field) {
                if (!a.always && settings.*field == defaults.*field) return;
                out.emplace_back(a.name);
                out.push_back(show(settings.*field));
            },
            a.field);
    return out;
}

template <class S>
Expected<void> read_argument(std::span<const Argument<S>> table, std::string_view name, std::string_view value, S& out) {
    for (const auto& a : table) {
        if (a.name != name) continue;
        bool ok = std::visit([&](auto field) { return read(value, out.*field); }, a.field);
        if (!a.choices.empty()) {
            bool known = false;
            for (const auto c : a.choices) known |= c == value;
            ok = ok && known;
        }
        if (!ok)
            return fail(ErrorCode::kInvalidArgument, std::string(name) + " has a wrong value: " + std::string(value),
                        std::string(name));
        return {};
    }
    return fail(ErrorCode::kInvalidArgument, "unknown argument " + std::string(name), std::string(name));
}

/// Reads `--name value` pairs and `--name=value`.
template <class S>
Expected<S> read_arguments(std::span<const Argument<S>> table, const std::vector<std::string>& args) {
    S out{};
    for (size_t i = 0; i < args.size(); ++i) {
        std::string_view name = args[i];
        if (const size_t equals = name.find('='); name.starts_with("--") && equals != std::string_view::npos) {
            BATON_TRY(read_argument(table, name.substr(0, equals), name.substr(equals + 1), out));
            continue;
        }
        if (i + 1 >= args.size())
            return fail(ErrorCode::kInvalidArgument, "argument " + std::string(name) + " has no value", std::string(name));
        BATON_TRY(read_argument(table, name, args[++i], out));
    }
    return out;
}

}  // namespace baton::config

#include "exit_reason.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>

namespace baton::supervisor {
namespace {

constexpr std::string_view kEvent = "replica.load_failed";

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
}

/// The text up to the closing quote, as baton::log escaped it.
std::string unquoted(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] != '\\' || i + 1 == text.size()) {
            out += text[i];
            continue;
        }
        ++i;
        if (text[i] != 'u' || text.size() - i < 5) {
            out += text[i];
            continue;
        }
        out += static_cast<char>(hex_digit(text[i + 3]) * 16 +
                                 hex_digit(text[i + 4]));  // control characters alone
        i += 4;
    }
    return out;
}

/// The field `reason` of a log line, or "".
std::string reason_of(std::string_view line) {
    for (const std::string_view mark :
         {std::string_view(" reason=\""), std::string_view("\"reason\":\"")}) {
        const size_t at = line.find(mark);
        if (at != std::string_view::npos) return unquoted(line.substr(at + mark.size()));
    }
    constexpr std::string_view kPlain = " reason=";
    const size_t at = line.find(kPlain);
    if (at == std::string_view::npos) return {};
    const std::string_view value = line.substr(at + kPlain.size());
    return std::string(value.substr(0, value.find(' ')));
}

/// Whether a line of our log tells of something ordinary, which explains no end.
bool is_ordinary(std::string_view line) {
    const std::string_view time = line.substr(0, line.find(' '));
    const bool plain = time.size() < line.size() && time.find('T') == 10;  // 2026-01-01T…
    for (const std::string level : {"trace", "debug", "info"}) {
        if (plain && line.substr(time.size() + 1).starts_with(level + " ")) return true;
        if (line.starts_with('{') && line.find("\"level\":\"" + level + "\"") != std::string_view::npos) return true;
    }
    return false;
}

/// Without those lines.
std::string without_ordinary(std::string_view output) {
    std::string out;
    while (!output.empty()) {
        const size_t end = std::min(output.find('\n'), output.size() - 1) + 1;
        if (!is_ordinary(output.substr(0, end))) out += output.substr(0, end);
        output.remove_prefix(end);
    }
    return out;
}

}  // namespace

std::string exit_text(int32_t status) {
    if (status >= 0) return "exit code " + std::to_string(status);
    const int64_t number = -int64_t{status};
    const char* name = number < NSIG ? ::sigabbrev_np(static_cast<int>(number)) : nullptr;
    return "killed by signal " + std::to_string(number) + (name == nullptr ? "" : std::string(" (SIG") + name + ")");
}

std::string exit_reason(std::string_view how, std::string_view last_output) {
    if (const size_t at = last_output.rfind(kEvent); at != std::string_view::npos) {
        const std::string_view line = last_output.substr(at);
        if (std::string reason = reason_of(line.substr(0, line.find('\n'))); !reason.empty())
            return reason;
    }
    const std::string told = without_ordinary(last_output);
    const size_t end = told.find_last_not_of(" \r\n");
    std::string out(how);
    if (end != std::string::npos) out.append(": ").append(told, 0, end + 1);
    return out;
}

}  // namespace baton::supervisor

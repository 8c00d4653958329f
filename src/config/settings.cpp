#include "baton/config/settings.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <variant>

#include "baton/base/log.hpp"
#include "baton/config/launch.hpp"
#include "config/arguments.hpp"
#include "config/json_text.hpp"
#include "config/settings_table.hpp"

namespace baton::config {
namespace {

using S = SupervisorSettings;

tl::unexpected<Error> wrong(std::string_view where, const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, std::string(where) + " " + why, std::string(where));
}

std::vector<std::string> split_commas(std::string_view text) {
    std::vector<std::string> out;
    while (!text.empty()) {
        const size_t comma = std::min(text.find(','), text.size());
        if (comma > 0) out.emplace_back(text.substr(0, comma));
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return out;
}

/// Takes one JSON value for a field; `where` is its path for the message.
struct FromJson {
    S& settings;
    const Json& value;
    std::string where;

    Expected<void> operator()(std::string S::*field) {
        if (!value.is_string()) return wrong(where, "must be a string, got " + kind_of(value));
        settings.*field = value.get<std::string>();
        return {};
    }
    Expected<void> operator()(bool S::*field) {
        if (!value.is_boolean()) return wrong(where, "must be true or false, got " + kind_of(value));
        settings.*field = value.get<bool>();
        return {};
    }
    Expected<void> operator()(std::vector<std::string> S::*field) {
        if (!value.is_array()) return wrong(where, "must be a list, got " + kind_of(value));
        std::vector<std::string> out;
        for (size_t i = 0; i < value.size(); ++i) {
            const bool objects = field == &S::deployments;
            if (objects ? !value[i].is_object() : !value[i].is_string())
                return wrong(where + "[" + std::to_string(i) + "]",
                             std::string("must be ") + (objects ? "an object" : "a string") + ", got " + kind_of(value[i]));
            out.push_back(objects ? value[i].dump() : value[i].get<std::string>());
        }
        settings.*field = std::move(out);
        return {};
    }
    template <std::integral T>
    Expected<void> operator()(T S::*field) {
        if (!is_integer(value)) return wrong(where, "must be an integer, got " + kind_of(value));
        T v{};
        if (!parse_number(value.dump(), v)) return wrong(where, "is out of range: " + value.dump());
        settings.*field = v;
        return {};
    }
};

/// What a value of a type looks like, for messages.
template <class T>
std::string_view expected() {
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    else if constexpr (std::is_same_v<T, uint16_t>) return "a number of 0 to 65535";
    else if constexpr (std::is_integral_v<T>) return "a number, not negative";
    else return "text";
}

struct FromText {
    S& settings;
    std::string_view text;
    std::string where;

    Expected<void> operator()(std::vector<std::string> S::*field) {
        if (field != &S::deployments) {
            settings.*field = split_commas(text);
            return {};
        }
        BATON_TRY_ASSIGN(const Json list, parse_json_text(text));
        return FromJson{settings, list, where}(field);
    }
    template <class T>
    Expected<void> operator()(T S::*field) {
        T v{};
        if (!read(text, v)) return wrong(where, "must be " + std::string(expected<T>()) + ", got " + in_quotes(text));
        settings.*field = v;
        return {};
    }
};

std::string environment(const char* name) {
    const char* v = std::getenv(name);
    return v == nullptr ? std::string() : std::string(v);
}

std::string folder(const char* xdg, const char* root_folder, const char* under_home) {
    if (const std::string base = environment(xdg); !base.empty()) return base + "/baton";
    if (::geteuid() == 0) return std::string(root_folder) + "/baton";
    const std::string home = environment("HOME");
    return (home.empty() ? "/tmp" : home) + under_home + "/baton";
}

bool is_ip_address(const std::string& text) {
    in6_addr address{};
    return ::inet_pton(AF_INET, text.c_str(), &address) == 1 || ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

Expected<void> check_addresses(const S& s) {
    if (s.host.empty()) return wrong("host", "must not be empty");
    if (s.advertise_address == "0.0.0.0" || s.advertise_address == "::")
        return wrong("advertise_address", "must be an address others can reach, not " + s.advertise_address);
    if (!s.advertise_address.empty() && !is_ip_address(s.advertise_address))
        return wrong("advertise_address", "must be an IP address, got " + in_quotes(s.advertise_address));
    if (s.link_address.empty()) return {};
    uint16_t port = 0;
    const size_t colon = s.link_address.rfind(':');
    if (colon == std::string::npos || colon == 0 || !parse_number(std::string_view(s.link_address).substr(colon + 1), port))
        return wrong("link_address", "must be IP:PORT, got " + in_quotes(s.link_address));
    if (s.link_secret.size() < 16) return wrong("link_secret", "must have at least 16 characters where link_address is set");
    return {};
}

Expected<void> check_numbers(const S& s) {
    if (s.http_threads < 1 || s.http_threads > 64) return wrong("http_threads", "must be within 1..64");
    if (s.text_threads < 1 || s.text_threads > 64) return wrong("text_threads", "must be within 1..64");
    if (s.shutdown_timeout_ms < 0) return wrong("shutdown_timeout_ms", "must not be negative");
    if (s.supervisor_grace_ms < 0) return wrong("supervisor_grace_ms", "must not be negative");
    return {};
}

/// Start-up deployments are checked like any launch, before the server listens.
Expected<void> check_deployments(S& s) {
    for (size_t i = 0; i < s.deployments.size(); ++i) {
        const std::string where = "deployments[" + std::to_string(i) + "]";
        auto json = parse_json_text(s.deployments[i]);
        if (!json) return wrong(where, "is wrong: " + json.error().message);
        if (auto path = json->find("model_path"); path != json->end() && path->is_string()) {
            std::string text = path->get<std::string>();
            constexpr std::string_view kVariable = "${cache_dir}";
            if (const size_t at = text.find(kVariable); at != std::string::npos)
                text.replace(at, kVariable.size(), s.cache_dir);
            *path = text;
            s.deployments[i] = json->dump();
        }
        if (auto launch = parse_launch(s.deployments[i], s.local_worker); !launch)
            return wrong(where, "is wrong: " + launch.error().message);
    }
    return {};
}

}  // namespace

std::string default_cache_dir() {
    const std::string set = environment("BATON_CACHE_DIR");
    return set.empty() ? folder("XDG_CACHE_HOME", "/var/cache", "/.cache") : set;
}

std::string default_state_dir() { return folder("XDG_STATE_HOME", "/var/lib", "/.local/state"); }

Expected<void> apply_file(SupervisorSettings& settings, std::string_view json_text) {
    BATON_TRY_ASSIGN(const Json json, parse_json_file(json_text));
    if (!json.is_object()) return fail(ErrorCode::kInvalidArgument, "the configuration must be a JSON object");
    for (const auto& [key, value] : json.items()) {
        const Setting* found = find_setting(key);
        if (found == nullptr) return wrong("/" + key, "is not a setting");
        BATON_TRY(std::visit(FromJson{settings, value, "/" + key}, found->field));
    }
    return {};
}

Expected<void> apply_text(SupervisorSettings& settings, std::string_view key, std::string_view value) {
    const Setting* found = find_setting(key);
    if (found == nullptr) return wrong(key, "is not a setting");
    return std::visit(FromText{settings, value, std::string(key)}, found->field);
}

Expected<void> apply_environment(SupervisorSettings& settings) {
    for (const Setting& s : settings_table()) {
        if (s.environment.empty()) continue;
        const char* value = std::getenv(std::string(s.environment).c_str());
        if (value == nullptr) continue;
        BATON_TRY(std::visit(FromText{settings, value, std::string(s.environment)}, s.field));
    }
    return {};
}

Expected<void> check(SupervisorSettings& s) {
    if (s.state_dir.empty()) s.state_dir = default_state_dir();
    if (s.cache_dir.empty()) s.cache_dir = default_cache_dir();
    log::Level level{};
    if (!log::parse_level(s.log_level, level)) return wrong("log_level", "must be trace, debug, info, warn or error");
    if (s.log_format != "text" && s.log_format != "json") return wrong("log_format", "must be text or json");
    for (const auto* keys : {&s.api_keys, &s.inference_api_keys})
        for (const auto& key : *keys)
            if (key.empty() || std::any_of(key.begin(), key.end(), [](char c) { return c <= 0x20 || c == 0x7f; }))
                return wrong(keys == &s.api_keys ? "api_keys" : "inference_api_keys", "must be non-empty and without spaces or control characters");
    if (!s.model_root.empty() && s.model_root.front() != '/') return wrong("model_root", "must be an absolute path");
    BATON_TRY(check_addresses(s));
    BATON_TRY(check_numbers(s));
    return check_deployments(s);
}

}  // namespace baton::config

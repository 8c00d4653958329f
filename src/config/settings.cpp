#include "baton/config/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <variant>

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

/// `baton config show` leaves secrets out: its text is no configuration where there are some.
tl::unexpected<Error> hidden(const std::string& where) { return wrong(where, "is a secret that `config show` does not show; put it there yourself"); }

std::vector<std::string> split_commas(std::string_view text) {
    std::vector<std::string> out;
    while (!text.empty()) {
        const size_t comma = std::min(text.find(','), text.size());
        if (comma > 0) out.emplace_back(text.substr(0, comma));
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return out;
}

/// JSON knows numbers, not integers: 30e3 and 30000.0 are 30000.
bool is_whole(const Json& v) { return v.is_number_float() && std::isfinite(v.get<double>()) && v.get<double>() == std::trunc(v.get<double>()); }
std::string digits(double whole) {
    char text[400];
    const auto [end, error] = std::to_chars(std::begin(text), std::end(text), whole, std::chars_format::fixed);
    return whole == 0 ? "0" : error == std::errc() ? std::string(text, end) : "";
}

/// What a value of a type looks like, for messages.
template <class T>
std::string_view expected() {
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    else if constexpr (std::is_same_v<T, uint16_t>) return "a number of 0 to 65535";
    else if constexpr (std::is_integral_v<T>) return "a number, not negative";
    else return "text";
}

/// Takes one JSON value for a field; `where` is its path for the message.
struct FromJson {
    S& settings;
    const Json& value;
    std::string where;

    Expected<void> operator()(std::string S::*field) {
        if (!value.is_string()) return wrong(where, "must be a string, got " + kind_of(value));
        if (value.get_ref<const std::string&>() == kHidden) return hidden(where);
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
            if (value[i].is_string() && value[i].get_ref<const std::string&>() == kHidden) return hidden(where + "[" + std::to_string(i) + "]");
            out.push_back(objects ? value[i].dump() : value[i].get<std::string>());
        }
        settings.*field = std::move(out);
        return {};
    }
    template <std::integral T>
    Expected<void> operator()(T S::*field) {
        if (!value.is_number_integer() && !is_whole(value)) return wrong(where, "must be an integer, got " + kind_of(value));
        T v{};
        if (!parse_number(value.is_number_integer() ? value.dump() : digits(value.get<double>()), v)) return wrong(where, "must be " + std::string(expected<T>()) + ", got " + value.dump());
        settings.*field = v;
        return {};
    }
};

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

/// Each value against its rule, by the table.
Expected<void> check_rules(const S& s) {
    for (const Setting& setting : settings_table()) {
        const auto why = [&](const auto& value) -> std::string {
            using T = std::decay_t<decltype(value)>;
            if constexpr (std::is_same_v<T, bool>) {
                return {};
            } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
                for (const std::string& one : value)
                    if (std::string w = why_broken(setting.rule, one); !w.empty()) return w;
                return {};
            } else {
                return why_broken(setting.rule, value);
            }
        };
        if (const std::string w = std::visit([&](auto field) { return why(s.*field); }, setting.field); !w.empty()) return wrong(setting.key, w);
    }
    if (!s.link_address.empty() && s.link_secret.size() < kLinkSecretMin)
        return wrong("link_secret", "must have at least " + std::to_string(kLinkSecretMin) + " characters where link_address is set");
    return {};
}

/// Start-up deployments are checked like any launch, before the server listens. Each has a uid of its own: what requests name.
Expected<void> check_deployments(S& s) {
    std::map<std::string, std::string> places;  // of each uid
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
        const auto launch = parse_launch(s.deployments[i], s.local_worker);
        if (!launch) return wrong(where, "is wrong: " + launch.error().message);
        const std::string& uid = launch->model_uid.empty() ? launch->model_name : launch->model_uid;
        if (const auto [first, is_new] = places.emplace(uid, where); !is_new)
            return wrong(where, "has the uid " + in_quotes(uid) + " of " + first->second + ": give one of them another model_uid");
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
        if (key == kSchemaKey && value.is_string()) continue;  // for editors
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
    BATON_TRY(check_rules(s));
    if (s.tls_certificate.empty() != s.tls_key.empty())
        return wrong(s.tls_key.empty() ? "tls_key" : "tls_certificate", std::string("must be set where ") + (s.tls_key.empty() ? "tls_certificate" : "tls_key") + " is");
    return check_deployments(s);
}

}  // namespace baton::config

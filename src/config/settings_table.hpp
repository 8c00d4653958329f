#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baton/config/settings.hpp"
#include "config/rule.hpp"

namespace baton::config {

/// What show_settings writes in the place of a secret. It has a space, so that no key can be that.
inline constexpr std::string_view kHidden = "(not shown)";

/// One setting through all its doors: the key of the JSON file, the environment variable, the option of the command
/// line; what its value must be; its line in docs/CONFIG.md and its part of the JSON schema.
struct Setting {
    using Field = std::variant<std::string SupervisorSettings::*, bool SupervisorSettings::*,
                               uint16_t SupervisorSettings::*, uint32_t SupervisorSettings::*,
                               uint64_t SupervisorSettings::*, int64_t SupervisorSettings::*,
                               std::vector<std::string> SupervisorSettings::*>;
    std::string_view key;
    Field field;
    std::string_view environment;  ///< "" none
    std::string_view option;       ///< "" none
    std::string_view default_text; ///< where the default is computed; "" shows the field's own
    std::string_view meaning;
    Rule rule{};
};

inline constexpr std::string_view kSchemaKey = "$schema";  ///< key of a file that names its schema; no setting

[[nodiscard]] const std::vector<Setting>& settings_table();
[[nodiscard]] const Setting* find_setting(std::string_view key);

}  // namespace baton::config

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::cli {

/// Request settings by the names that `/set` and the options of chat and generate use.
class SamplingSettings {
  public:
    /// Sets one from text. kInvalidArgument says what is wrong, with the names there are.
    [[nodiscard]] Expected<void> set(std::string_view name, std::string_view text);
    /// Back to the model's default; kInvalidArgument for a name there is not.
    [[nodiscard]] Expected<void> unset(std::string_view name);
    /// Adds those that were set to a request body.
    void add_to(nlohmann::ordered_json& body) const;
    /// "temperature 0.7", one each, in the order of names().
    [[nodiscard]] std::vector<std::string> shown() const;
    /// Every name, with what it means.
    struct Name {
        std::string_view name;
        std::string_view meaning;
        bool flag;  ///< true or false
    };
    [[nodiscard]] static const std::vector<Name>& names();

  private:
    std::map<std::string, nlohmann::ordered_json, std::less<>> values_;
};

}  // namespace baton::cli

#include "baton/model/model.hpp"
#include "json.hpp"
#include "spec.hpp"

namespace baton::model {

Expected<void> check_config(std::string_view config_json) {
    BATON_TRY_ASSIGN(const Json config, parse_json(config_json, "config.json"));
    BATON_TRY(spec_from_config(config));
    return {};
}

}  // namespace baton::model

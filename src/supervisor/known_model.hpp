#pragma once

#include <string>

#include "baton/model/model.hpp"
#include "baton/registry/registry.hpp"

namespace baton::supervisor {

/// Puts what a registration says over what the model's files say: its chat template, and the tokens that end a generation
/// beside the model's own. kInvalidArgument for a template that does not compile or tokens that the model does not have.
[[nodiscard]] Expected<void> apply_style(const registry::Style& style, model::ModelInfo& info);

/// model::inspect_model, then apply_style() of `known` (null: none). Takes a while: not for the control thread.
[[nodiscard]] Expected<model::ModelInfo> inspect_known(const std::string& path, model::Weights weights, const registry::Resolved* known);

}  // namespace baton::supervisor

#pragma once

#include <string>
#include <string_view>

#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"

namespace baton::cli {

/// A plan with the sizes of a known model and random bf16 weights, for measurements without its files. All tensors view
/// parts of one random buffer as large as the largest of them. kNotFound with the names there are.
[[nodiscard]] Expected<backend::Plan> random_plan(std::string_view shape);

/// The names random_plan knows, separated by commas.
[[nodiscard]] std::string shape_names();

}  // namespace baton::cli

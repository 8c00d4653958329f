#pragma once

#include <string>

namespace baton::cli {

/// What CLI11 says of a wrong command line, in words for who typed it. `what` without a line's end; what is not known stays as it is.
[[nodiscard]] std::string plain_usage_error(const std::string& what);

}  // namespace baton::cli

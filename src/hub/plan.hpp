#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/hub/hub.hpp"

namespace baton::hub {

/// Which files of a repository a model needs.
struct Plan {
    std::string format;                ///< pytorch or ggufv2
    std::vector<std::string> first;    ///< configuration and tokenizer; without them no weights are taken
    std::string index;                 ///< names the shards, which shards_of_index() adds; "" when all is known
    std::vector<std::string> weights;  ///< safetensors, or the parts of one GGUF in order
    bool split = false;                ///< a GGUF in several files
};

/// Chooses among the files `names` of a repository. kUnsupported for formats baton does not read, kNotFound when a file that
/// a model needs is not there, kInvalidArgument when several could be meant: the message lists them.
[[nodiscard]] Expected<Plan> plan_files(const std::vector<std::string>& names, const PullRequest& request);
/// The files that a model.safetensors.index.json names, sorted. kCorrupt for anything that is not one, or names files outside
/// of the repository's folder.
[[nodiscard]] Expected<std::vector<std::string>> shards_of_index(std::string_view json);
/// "q4_k_m" of "x-q4_k_m-00001-of-00003.gguf"; "" when the name ends with no type of GGUF weights.
[[nodiscard]] std::string gguf_quantization(std::string_view file_name);

}  // namespace baton::hub

#pragma once

#include <string>
#include <string_view>

namespace baton::supervisor {

/// How a process ended: "exit code 3", "killed by signal 9 (SIGKILL)". `status` as wire::ReplicaExited has it.
[[nodiscard]] std::string exit_text(int32_t status);

/// What a user is told of a replica's end: the reason it gave itself for not loading (the last
/// `replica.load_failed` of its output, either log format), else `how` and the end of its output.
[[nodiscard]] std::string exit_reason(std::string_view how, std::string_view last_output);

}  // namespace baton::supervisor

#pragma once

#include <string>

#include "api_answers.hpp"
#include "deployment.hpp"

/// Deployments as the control API shows them. Control thread.
namespace baton::supervisor {

/// The description of a running model.
[[nodiscard]] Json description(const Deployment& d);
/// The same with OpenAI's keys, for the list of models and one of them.
[[nodiscard]] Json model_entry(const Deployment& d);
/// One row of /v1/models/{uid}/replicas.
[[nodiscard]] Json replica_row(const Deployment& d, const Slot& s);
/// The state of the whole: UPDATING too while replicas come or go, and while a role has lost its last replica (requests are
/// answered 503 then); ERROR when all of that role have been given up.
[[nodiscard]] const char* instance_status(const Deployment& d);
/// One row of /v1/models/instances.
[[nodiscard]] Json instance_row(const Deployment& d);
/// "UID-repN".
[[nodiscard]] std::string replica_model_uid(const Deployment& d, const Slot& s);

}  // namespace baton::supervisor

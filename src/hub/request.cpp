#include "baton/hub/hub.hpp"
#include "baton/wire/messages.hpp"

namespace baton::hub {

Expected<PullRequest> request_of(const wire::PullModel& ask, std::function<Expected<void>(std::string_view)> check_config) {
    PullRequest out;
    BATON_TRY_ASSIGN(out.hub, parse_hub(ask.hub));
    out.repo = ask.repo;
    out.revision = ask.revision;
    out.format = ask.format;
    out.quantization = ask.quantization;
    out.gguf_file = ask.gguf_file;
    out.cached_is_enough = true;
    out.check_config = std::move(check_config);
    return out;
}

}  // namespace baton::hub

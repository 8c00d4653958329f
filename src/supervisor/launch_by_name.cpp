/// A launch without model_path: the registry says where the model is, the workers bring its files, then it goes on as any
/// other. The deployment is listed from the beginning, so that its progress is seen and it can be cancelled.

#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>

#include "baton/base/log.hpp"
#include "baton/hub/hub.hpp"
#include "deployments.hpp"
#include "known_model.hpp"

namespace baton::supervisor {
namespace {

/// A field of the launch body that only this path reads.
std::string text_of(const std::string& body, const char* key) {
    const auto json = nlohmann::json::parse(body, nullptr, false);
    if (!json.is_object()) return "";
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

/// What a client hears of a download that failed: its own request is to blame, or the way to the hub.
Error pull_error(Error e) {
    switch (e.code) {
        case ErrorCode::kCancelled:
        case ErrorCode::kInternal:
        case ErrorCode::kInvalidArgument:
        case ErrorCode::kUnsupported: break;
        case ErrorCode::kTimeout:
        case ErrorCode::kPeerLost:
        case ErrorCode::kIo:
        case ErrorCode::kUnavailable: e.code = ErrorCode::kUnavailable; break;
        default: e.code = ErrorCode::kInvalidArgument; break;
    }
    return e;
}

/// What the request leaves open is what the registry chose: it shows in the model's description.
void fill_in(config::LaunchRequest& request, const registry::Resolved& model) {
    if (request.model_format.empty()) request.model_format = model.format;
    if (request.quantization.empty() || !model.direct) request.quantization = model.quantization;
    if (!model.size.empty()) request.size_in_billions = model.size;
}

}  // namespace

void Deployments::launch_by_name(config::LaunchRequest request, std::function<void(const std::string&)> accepted, LaunchDone done) {
    const auto settings = hub::settings_from_environment();
    if (!settings) return done(fail(settings.error()));
    const std::string hub = text_of(request.raw_json, "download_hub");
    if (const auto known = hub::parse_hub(hub); !known) return done(fail(known.error()));
    auto model = services_.registry.resolve({request.model_name, request.size_in_billions, request.model_format, request.quantization, hub}, settings->default_hub);
    if (!model) return done(fail(model.error()));
    fill_in(request, *model);
    if (!model->path.empty()) {
        request.model_path = model->path;
        return launch_files(std::move(request), std::make_shared<const registry::Resolved>(std::move(*model)), std::move(accepted), std::move(done));
    }
    std::set<std::string> on_workers;
    for (const config::ReplicaPlacement& p : request.placements) on_workers.insert(p.worker_ip);
    auto listed = enlist(std::move(request), {}, std::make_shared<const registry::Resolved>(*model));
    if (!listed) return done(fail(listed.error()));
    const std::shared_ptr<Deployment> deployment = *listed;
    log::info("launch.resolved", {{"model_uid", deployment->uid()}, {"hub", model->hub}, {"repo", model->repo}, {"format", model->format}, {"quantization", model->quantization}});
    if (accepted) accepted(deployment->uid());
    const std::weak_ptr<Deployment> weak = deployment;
    const uint64_t pull = services_.pulls.start(
        *model, on_workers,
        [weak](const std::string& worker, const wire::PullProgress& progress) {
            if (const auto d = weak.lock()) d->download.update(worker, progress, steady_now());
        },
        [this, weak](Expected<ModelPulls::Pulled> pulled) {
            const auto d = weak.lock();
            if (!d) return;
            if (!pulled) {
                Error e = pull_error(pulled.error());
                if (e.param.empty()) e.param = "model_name";
                return d->fail_prepared(e.code == ErrorCode::kUnsupported ? inspection_error(d->request(), std::move(e)) : std::move(e));
            }
            inspect_pulled(d, std::move(*pulled));
        });
    deployment->prepare([this, pull, then = when_launched(deployment, std::move(done))](Expected<void> result) {
        if (!result) services_.pulls.cancel(pull);  // else it is through
        then(std::move(result));
    });
}

void Deployments::inspect_pulled(const std::shared_ptr<Deployment>& deployment, ModelPulls::Pulled pulled) {
    boost::asio::post(services_.background, [this, deployment, pulled = std::move(pulled)]() mutable {
        const model::Weights weights = pulled.described_only ? model::Weights::kAbsent : model::Weights::kChecked;
        auto info = inspect_known(pulled.path, weights, deployment->known().get());
        boost::asio::post(services_.io, [deployment, pulled = std::move(pulled), info = std::move(info)]() mutable {
            if (!info) return deployment->fail_prepared(inspection_error(deployment->request(), info.error()));
            deployment->launch_prepared(std::move(*info), std::move(pulled.path), std::move(pulled.paths));
        });
    });
}

}  // namespace baton::supervisor

#include "deployments.hpp"

#include <boost/asio/post.hpp>
#include <chrono>
#include <filesystem>

#include "baton/base/digest.hpp"
#include "baton/base/log.hpp"
#include "baton/openai/response.hpp"
#include "known_model.hpp"

namespace baton::supervisor {
namespace {

constexpr uint32_t kModelLenMin = 16;
constexpr size_t kFailedKept = 16;  ///< rows of failed launches
constexpr const char* kRecurrentPd =
    "Xavier PD does not yet support hybrid/recurrent attention caches (for example Qwen3.5). Launch this model without "
    "PD/Xavier, or use a full-attention model such as Qwen3 for PD.";

/// The loader's refusal reads "architecture 'X' is not …".
bool names_recurrent_architecture(const Error& e) {
    const size_t begin = e.message.find("architecture '");
    if (e.code != ErrorCode::kUnsupported || begin == std::string::npos) return false;
    const size_t name = begin + 14;
    return model::is_recurrent_architecture(e.message.substr(name, e.message.find('\'', name) - name));
}

}  // namespace

Deployments::Deployments(Services services)
    : services_(std::move(services)), disk_(boost::asio::make_strand(services_.background)), waiting_timer_(services_.io) {
    // Epochs of a later supervisor are higher than those of an earlier one, without a file that must be kept.
    last_epoch_ = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
    load_state();
}

std::shared_ptr<Deployment> Deployments::find(const std::string& uid) const {
    const auto it = all_.find(uid);
    if (it == all_.end() || it->second->state() == DeploymentState::kError || it->second->state() == DeploymentState::kTerminating) return nullptr;
    return it->second;
}

Expected<std::string> Deployments::choose_uid(const config::LaunchRequest& request) const {
    // A model that is still ending has its uid: its processes report under it.
    const auto is_free = [&](const std::string& uid) {
        const auto it = all_.find(uid);
        return it == all_.end() || it->second->state() == DeploymentState::kError;
    };
    if (!request.model_uid.empty()) {
        BATON_TRY(config::check_model_uid(request.model_uid));
        if (!is_free(request.model_uid)) return fail(ErrorCode::kInvalidArgument, "Model is already in the model list, uid: " + request.model_uid, "model_uid");
        return request.model_uid;
    }
    if (is_free(request.model_name) && config::check_model_uid(request.model_name)) return request.model_name;
    const std::string uid = request.model_name + "-" + random_hex(4);
    BATON_TRY(config::check_model_uid(uid));
    return uid;
}

/// Sizes that no host could serve, told before anything is started.
Expected<void> Deployments::check_sizes(const config::LaunchRequest& request) const {
    if (request.max_model_len != 0 && request.max_model_len < kModelLenMin)
        return fail(ErrorCode::kInvalidArgument, "max_model_len must be at least " + std::to_string(kModelLenMin) + ", got " + std::to_string(request.max_model_len), "max_model_len");
    for (const config::ReplicaPlacement& p : request.placements) {
        const Workers::Worker* w = services_.workers.find(p.worker_ip);
        if (w != nullptr && p.gpu_idx.empty() && request.kv_cache_bytes > w->ready.memory_bytes)
            return fail(ErrorCode::kInvalidArgument, "kv_cache_bytes " + std::to_string(request.kv_cache_bytes) + " is beyond the memory of worker " + p.worker_ip + ", " + std::to_string(w->ready.memory_bytes) + " bytes", "kv_cache_bytes");
    }
    return {};
}

/// The workers with what the deployments here have placed on their GPUs.
std::vector<config::WorkerView> Deployments::worker_views() const {
    std::vector<config::WorkerView> views = services_.workers.views();
    const auto count = [&](const config::ReplicaPlacement& p) {
        for (config::WorkerView& w : views)
            if (w.address == p.worker_ip)
                for (const int64_t g : p.gpu_idx) ++w.on_gpu[g];
    };
    for (config::WorkerView& w : views) w.share_gpus = services_.settings.share_gpus;
    for (const auto& [uid, d] : all_) {
        if (d->state() == DeploymentState::kError || d->state() == DeploymentState::kTerminated) continue;
        for (const Slot& s : d->slots()) count(s.placement);
    }
    for (const auto& placements : placing_)
        for (const config::ReplicaPlacement& p : placements) count(p);
    return views;
}

void Deployments::launch(config::LaunchRequest request, std::function<void(const std::string&)> accepted, LaunchDone done) {
    if (shutting_down_) return done(fail(ErrorCode::kUnavailable, "the server is shutting down"));
    std::vector<std::string> warnings;
    auto resolved = config::resolve_launch(std::move(request), worker_views(), one_host(), warnings);
    if (!resolved) return done(fail(resolved.error()));
    if (auto ok = services_.workers.check_transfer(resolved->placements); !ok) return done(fail(ok.error()));
    for (const std::string& w : warnings) log::warn("launch.placement", {{"warning", w}});
    if (resolved->model_path.empty()) {
        if (auto ok = check_sizes(*resolved); !ok) return done(fail(ok.error()));
        return launch_by_name(std::move(*resolved), std::move(accepted), std::move(done));
    }
    launch_files(std::move(*resolved), nullptr, std::move(accepted), std::move(done));
}

/// A launch of files that are here, its replicas placed.
void Deployments::launch_files(config::LaunchRequest request, Known known, std::function<void(const std::string&)> accepted, LaunchDone done) {
    auto path = model::resolve_model_path(request.model_path, services_.settings.model_root);
    if (!path) {
        if (path.error().code == ErrorCode::kNotFound)
            return done(fail(ErrorCode::kInvalidArgument, "Invalid input. `model_path`: " + request.model_path + " File or directory does not exist.", "model_path"));
        return done(fail(path.error()));
    }
    if (auto uid = choose_uid(request); !uid) return done(fail(uid.error()));
    if (auto ok = check_sizes(request); !ok) return done(fail(ok.error()));
    request.model_path = *path;
    // Reading a model's headers and tokenizer takes a while: not on this thread. Its GPUs are spoken for meanwhile.
    const auto placing = placing_.insert(placing_.end(), request.placements);
    boost::asio::post(services_.background, [this, placing, request = std::move(request), known = std::move(known), accepted = std::move(accepted), done = std::move(done)]() mutable {
        auto info = inspect_known(request.model_path, model::Weights::kChecked, known.get());
        boost::asio::post(services_.io, [this, placing, request = std::move(request), known = std::move(known), info = std::move(info), accepted = std::move(accepted), done = std::move(done)]() mutable {
            placing_.erase(placing);
            if (!info) return done(fail(inspection_error(request, info.error())));
            launch_inspected(std::move(request), std::move(*info), std::move(known), std::move(accepted), std::move(done));
        });
    });
}

/// What a client hears of files that cannot be served.
Error Deployments::inspection_error(const config::LaunchRequest& request, Error e) {
    const bool recurrent = (request.pd || request.enable_xavier) && names_recurrent_architecture(e);
    if (recurrent) e.message = kRecurrentPd;
    const std::string name = std::filesystem::path(request.model_path).filename().string();
    const bool of_the_file = e.code == ErrorCode::kCorrupt || e.code == ErrorCode::kIo || (e.code == ErrorCode::kUnsupported && !recurrent);
    if (of_the_file && !name.empty() && e.message.find(name) == std::string::npos) e.message = name + ": " + e.message;
    if (e.code == ErrorCode::kCorrupt || e.code == ErrorCode::kNotFound || e.code == ErrorCode::kIo) e.code = ErrorCode::kInvalidArgument;
    if (e.param.empty()) e.param = "model_path";
    return e;
}

void Deployments::launch_inspected(config::LaunchRequest request, model::ModelInfo info, Known known, std::function<void(const std::string&)> accepted, LaunchDone done) {
    auto deployment = enlist(std::move(request), std::move(info), std::move(known));
    if (!deployment) return done(fail(deployment.error()));
    if (accepted) accepted((*deployment)->uid());
    (*deployment)->launch(when_launched(*deployment, std::move(done)));
}

/// Lists a deployment under its uid, before anything of it runs.
Expected<std::shared_ptr<Deployment>> Deployments::enlist(config::LaunchRequest request, model::ModelInfo info, Known known) {
    if (shutting_down_) return fail(ErrorCode::kUnavailable, "the server is shutting down");
    auto uid = choose_uid(request);  // again: another launch may have taken it meanwhile
    if (!uid) return fail(uid.error());
    request.model_uid = *uid;
    for (size_t i = 0; i < request.placements.size(); ++i)
        if (request.placements[i].replica_uid.empty()) request.placements[i].replica_uid = *uid + "-" + std::to_string(i);
    Deployment::Services s{services_.io,          services_.workers, services_.settings, services_.control_unix,
                           [this] { return ++last_epoch_; }, [this] { return SequenceId{++last_sequence_}; }, counts_};
    const auto deployment = std::make_shared<Deployment>(std::move(s), std::move(request), std::move(info), std::move(known));
    all_[*uid] = deployment;
    services_.models.set_loading(*uid);
    return deployment;
}

/// Opens a deployment to requests once it is ready, or cleans up after it.
Deployment::Done Deployments::when_launched(const std::shared_ptr<Deployment>& deployment, LaunchDone done) {
    return [this, deployment, uid = deployment->uid(), done = std::move(done)](Expected<void> result) {
        if (!result) {
            services_.models.remove(uid);
            const auto it = all_.find(uid);
            // What somebody cancelled leaves nothing; what failed leaves its row, and why.
            if (result.error().code == ErrorCode::kCancelled && it != all_.end() && it->second == deployment) all_.erase(it);
            forget_old_failures();
            return done(fail(result.error()));
        }
        auto served = std::make_shared<ServedModel>();
        served->uid = uid;
        served->info = deployment->model();
        if (deployment->known()) served->style = deployment->known()->style;
        if (!deployment->request().tool_call_parser.empty()) served->style.tool_parser = deployment->request().tool_call_parser;
        served->style.reasoning_parser = deployment->request().reasoning_parser;
        served->templates = openai::inspect_template(served->info.chat_template_source, served->info.bos_token, served->info.eos_token);
        const registry::Style& style = served->style;
        openai::set_parsers(served->templates, style.tool_parser, style.reasoning_parser, style.reasoning_start, style.reasoning_end);
        openai::ModelLimits& l = served->limits;
        l.vocab_size = served->info.shape.vocab;
        l.context_tokens = deployment->context_length();
        l.eos_ids = served->info.eos;
        const model::GenerationDefaults& g = served->info.generation;
        if (g.temperature) l.temperature = *g.temperature;
        if (g.top_p) l.top_p = *g.top_p;
        if (g.top_k) l.top_k = *g.top_k;
        if (g.repetition_penalty) l.repetition_penalty = *g.repetition_penalty;
        served->fingerprint = openai::system_fingerprint(to_hex(served->info.identity), served->info.quantization);
        services_.models.put(std::move(served));
        recorded_[uid] = deployment->request().raw_json;
        save_state([uid, done] { done(uid); });
    };
}

void Deployments::forget_old_failures() {
    for (;;) {
        size_t failed = 0;
        auto oldest = all_.end();
        for (auto it = all_.begin(); it != all_.end(); ++it) {
            if (it->second->state() != DeploymentState::kError || recorded_.contains(it->first)) continue;
            ++failed;
            if (oldest == all_.end() || it->second->created_unix() < oldest->second->created_unix()) oldest = it;
        }
        if (failed <= kFailedKept) return;
        all_.erase(oldest);
    }
}

void Deployments::terminate(const std::string& uid, std::function<void(Expected<void>)> done) {
    const auto deployment = find(uid);
    if (!deployment) {
        const auto it = all_.find(uid);
        if (it != all_.end() && it->second->state() == DeploymentState::kError) {  // clears the row of a failed launch
            all_.erase(it);
            waiting_.erase(uid);
            if (recorded_.erase(uid) == 0) return done({});
            return save_state([done = std::move(done)] { done({}); });
        }
        return done(fail(ErrorCode::kInvalidArgument, "Model not found in the model list, uid: " + uid, "model_uid"));
    }
    if (deployment->state() != DeploymentState::kReady) return cancel(uid, std::move(done));
    services_.models.remove(uid);
    recorded_.erase(uid);
    // Done when the processes are gone and no restart would bring the model back.
    auto left = std::make_shared<int>(2);
    const auto one = [left, done = std::move(done)] {
        if (--*left == 0) done({});
    };
    save_state(one);
    deployment->terminate([this, uid, deployment, one] {
        const auto it = all_.find(uid);
        if (it != all_.end() && it->second == deployment) all_.erase(it);
        one();
    });
}

void Deployments::cancel(const std::string& uid, std::function<void(Expected<void>)> done) {
    const auto deployment = find(uid);
    if (!deployment || deployment->state() == DeploymentState::kReady)
        return done(fail(ErrorCode::kInvalidArgument, deployment ? "Model " + uid + " is running, not launching" : "Model " + uid + " has not been launched yet", "model_uid"));
    deployment->cancel_launch([this, done = std::move(done)] {
        save_state([done] { done({}); });  // it may have been one of an earlier start
    });
}

void Deployments::shut_down(std::function<void()> done) {
    shutting_down_ = true;
    auto left = std::make_shared<size_t>(1);
    auto one = [left, done = std::move(done)] {
        if (--*left == 0) done();
    };
    const auto running = all_;
    for (const auto& [uid, d] : running) {
        if (d->state() == DeploymentState::kError || d->state() == DeploymentState::kTerminated) continue;
        services_.models.remove(uid);
        ++*left;
        d->terminate(one);
    }
    one();
}

// ---- links ------------------------------------------------------------------------------------------------------------

void Deployments::replica_connected(std::shared_ptr<net::Connection> link) {
    // "uid/replica/epoch"; a uid may hold slashes, the two numbers may not.
    const std::string name = link->peer().name;
    const size_t second = name.rfind('/');
    const size_t first = second == std::string::npos || second == 0 ? std::string::npos : name.rfind('/', second - 1);
    uint64_t replica = 0, epoch = 0;
    if (first != std::string::npos) {
        replica = std::strtoull(name.c_str() + first + 1, nullptr, 10);
        epoch = std::strtoull(name.c_str() + second + 1, nullptr, 10);
    }
    const auto it = first == std::string::npos ? all_.end() : all_.find(name.substr(0, first));
    if (it != all_.end()) return it->second->replica_connected(std::move(link), ReplicaId{replica}, Epoch{epoch});
    // While recorded deployments are still coming back a survivor of the last supervisor is only asked to try again.
    if (!starting()) link->send(wire::Refused{static_cast<uint8_t>(ErrorCode::kNotFound), "no such deployment"});
    link->close();
}

void Deployments::worker_lost(const std::string& address) {
    for (const auto& [uid, d] : std::map(all_)) d->worker_lost(address);
}
void Deployments::replica_spawned(const wire::SpawnResult& r) {
    if (const auto it = all_.find(r.model_uid); it != all_.end()) std::shared_ptr(it->second)->replica_spawned(r);
}
void Deployments::replica_exited(const wire::ReplicaExited& r) {
    if (const auto it = all_.find(r.model_uid); it != all_.end()) std::shared_ptr(it->second)->replica_exited(r);
}
void Deployments::worker_stats(const std::string& address, const wire::WorkerStats& stats) {
    for (const auto& [uid, d] : all_) d->worker_stats(address, stats);
}

}  // namespace baton::supervisor

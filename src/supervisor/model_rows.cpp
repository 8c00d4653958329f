#include "model_rows.hpp"

#include "baton/base/ids.hpp"

namespace baton::supervisor {
namespace {

const char* slot_status(const Deployment& d, const Slot& s) {
    if (d.state() == DeploymentState::kError) return "ERROR";
    if (s.removing) return "TERMINATING";
    switch (s.state) {
        case SlotState::kSpawning: return "CREATING";
        case SlotState::kLoading: return "LOADING";
        case SlotState::kUp: return d.state() == DeploymentState::kReady ? "READY" : "LOADING";
        case SlotState::kDown: return d.state() == DeploymentState::kTerminating ? "TERMINATING" : "UPDATING";
        case SlotState::kFailed: return "ERROR";
    }
    return "ERROR";
}

/// No replica of a role is left, and none comes back.
bool gave_up(const Deployment& d) {
    for (const Role role : {Role::kHybrid, Role::kPrefill, Role::kDecode}) {
        size_t all = 0, failed = 0;
        for (const Slot& s : d.slots()) {
            if (s.placement.role != role) continue;
            ++all;
            failed += s.state == SlotState::kFailed ? 1 : 0;
        }
        if (all > 0 && failed == all) return true;
    }
    return false;
}

/// What a replica failed of: its own fault, or that of its launch, which may have ended before any process began.
Json fault_of(const Deployment& d, const Slot& s) {
    if (!s.error.empty()) return s.error;
    return d.state() == DeploymentState::kError && !d.error().empty() ? Json(d.error()) : Json(nullptr);
}

/// GPU numbers as texts; null on the CPU.
Json accelerators(const Slot& s) {
    if (s.placement.gpu_idx.empty()) return nullptr;
    Json out = Json::array();
    for (const int64_t g : s.placement.gpu_idx) out.push_back(std::to_string(g));
    return out;
}

/// What the model can do by its files, and what its registration says beside that.
Json abilities(const Deployment& d) {
    Json out = Json::array({"generate"});
    if (!d.model().chat_template) return out;
    out.push_back("chat");
    if (d.known())
        for (const std::string& a : d.known()->abilities)
            if (a != "generate" && a != "chat") out.push_back(a);
    return out;
}

/// A size as Xinference gives it: a whole number as such, anything else as text.
Json size_of(const std::string& text) {
    if (text.empty()) return nullptr;
    if (text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos) return std::stoll(text);
    return text;
}

}  // namespace

Json description(const Deployment& d) {
    const model::ModelInfo& m = d.model();
    const config::LaunchRequest& r = d.request();
    return {{"model_type", "LLM"},
            {"address", d.slots().empty() ? "" : d.slots().front().placement.worker_ip},
            {"accelerators", d.slots().empty() ? Json(nullptr) : accelerators(d.slots().front())},
            {"model_name", r.model_name},
            {"model_lang", d.known() && !d.known()->languages.empty() ? Json(d.known()->languages) : Json::array({"en"})},
            {"model_ability", abilities(d)},
            {"model_description", d.known() ? d.known()->description : ""},
            {"model_format", r.model_format.empty() ? (m.format == "gguf" ? "ggufv2" : "pytorch") : r.model_format},
            {"model_size_in_billions", size_of(r.size_in_billions)},
            {"model_family", m.family},
            {"quantization", r.quantization.empty() ? m.quantization : r.quantization},
            {"multimodal_projector", nullptr},
            {"model_hub", d.known() && !d.known()->hub.empty() ? d.known()->hub : "huggingface"},
            {"revision", d.known() && !d.known()->revision.empty() ? Json(d.known()->revision) : Json(nullptr)},
            {"context_length", d.context_length()},
            {"strict_system_first", false},
            {"model_engine", r.model_engine},
            {"replica", d.slots().size()}};
}

Json model_entry(const Deployment& d) {
    Json entry = {{"id", d.uid()}, {"object", "model"}, {"created", 0}, {"owned_by", "xinference"}};
    entry.update(description(d));
    return entry;
}

std::string replica_model_uid(const Deployment& d, const Slot& s) { return d.uid() + "-rep" + std::to_string(s.id.value - 1); }

Json replica_row(const Deployment& d, const Slot& s) {
    return {{"replica_id", s.id.value - 1},
            {"replica_model_uid", replica_model_uid(d, s)},
            {"worker_address", s.placement.worker_ip},
            {"model_address", nullptr},
            {"accelerators", accelerators(s)},
            {"status", slot_status(d, s)},
            {"created_ts", s.created_unix},
            {"error_message", fault_of(d, s)},
            {"replica_uid", s.placement.replica_uid},
            {"gpu_idx", s.placement.gpu_idx.empty() ? Json(nullptr) : Json(s.placement.gpu_idx)},
            {"role", to_string(s.placement.role)},
            {"pid", s.pid == 0 ? Json(nullptr) : Json(s.pid)},
            {"running", s.stats.running},
            {"waiting", s.stats.waiting},
            {"kv_blocks_free", s.stats.blocks_free},
            {"kv_blocks", s.stats.blocks_free + s.stats.blocks_used + s.stats.blocks_cached + s.stats.blocks_offered},
            {"kv_blocks_held", s.stats.blocks_used + s.stats.blocks_offered},
            {"memory_bytes", s.ready.memory_bytes}};
}

const char* instance_status(const Deployment& d) {
    if (d.state() != DeploymentState::kReady) return to_string(d.state());
    if (!d.ready()) return gave_up(d) ? "ERROR" : "UPDATING";
    return d.updating() ? "UPDATING" : "READY";
}

Json instance_row(const Deployment& d) {
    Json rows = Json::array();
    for (const Slot& s : d.slots()) rows.push_back(replica_row(d, s));
    return {{"model_name", d.request().model_name},
            {"model_uid", d.uid()},
            {"model_version", nullptr},
            {"model_ability", abilities(d)},
            {"replica", d.slots().size()},
            {"status", instance_status(d)},
            {"instance_created_ts", d.created_unix()},
            {"n_worker", 1},
            {"replica_statuses", rows}};
}

}  // namespace baton::supervisor

#include <algorithm>
#include <cctype>
#include <set>

#include "baton/base/limits.hpp"
#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

tl::unexpected<Error> invalid(const std::string& reason) {
    return bad("Invalid replica_config: " + reason, "replica_config");
}

std::string strip(std::string_view s) {
    const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    while (!s.empty() && space(s.front())) s.remove_prefix(1);
    while (!s.empty() && space(s.back())) s.remove_suffix(1);
    return std::string(s);
}

std::string at(size_t i) { return "replica_config[" + std::to_string(i) + "]"; }

Expected<void> refuse_unknown_keys(const Json& object, std::initializer_list<std::string_view> known,
                                   const std::string& where) {
    for (const auto& [key, value] : object.items())
        if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end())
            return invalid("unknown key " + in_quotes(key) + " in " + where);
    return {};
}

Expected<std::vector<int64_t>> parse_gpu_idx(const Json& value) {
    if (!value.is_array()) return invalid("gpu_idx must be a list of integers");
    std::vector<int64_t> out;
    for (const Json& v : value) {
        if (!is_integer(v)) return invalid("gpu_idx must contain only integers");
        out.push_back(v.get<int64_t>());
    }
    if (std::set<int64_t>(out.begin(), out.end()).size() != out.size())
        return invalid("gpu_idx must not contain duplicate indexes");
    return out;
}

Expected<ReplicaConfigEntry::Device> parse_device(const Json& value, const std::string& where) {
    if (!value.is_object()) return invalid(where + " must be an object");
    BATON_TRY(refuse_unknown_keys(value, {"worker_ip", "n_gpu", "gpu_idx"}, where));
    ReplicaConfigEntry::Device device;
    const auto ip = value.find("worker_ip");
    if (ip == value.end() || !ip->is_string()) return invalid("worker_ip must be a string");
    device.worker_ip = strip(ip->get<std::string>());
    if (const auto n = value.find("n_gpu"); n != value.end() && !(n->is_string() && *n == "auto")) {
        if (!is_integer(*n) || n->get<int64_t>() < 0)
            return invalid("n_gpu must be a non-negative integer or 'auto'");
        device.n_gpu = n->get<int64_t>();
    }
    if (const Json* idx = member(value, "gpu_idx")) {
        BATON_TRY_ASSIGN(device.gpu_idx, parse_gpu_idx(*idx));
    }
    return device;
}

Expected<ReplicaConfigEntry> parse_entry(const Json& value, const std::string& where) {
    if (!value.is_object()) return invalid(where + " must be an object");
    BATON_TRY(refuse_unknown_keys(value, {"replica_uid", "role", "devices"}, where));
    ReplicaConfigEntry entry;
    if (const Json* uid = member(value, "replica_uid")) {
        if (!uid->is_string()) return invalid("replica_uid must be a string");
        entry.replica_uid = uid->get<std::string>();
    }
    if (const Json* role = member(value, "role")) {
        const std::string name = role->is_string() ? role->get<std::string>() : std::string();
        if (name != "hybrid" && name != "prefill" && name != "decode")
            return invalid("role must be 'hybrid', 'prefill' or 'decode', got " + (role->is_string() ? in_quotes(name) : kind_of(*role)));
        entry.role = name == "prefill" ? Role::kPrefill : name == "decode" ? Role::kDecode : Role::kHybrid;
    }
    const auto devices = value.find("devices");
    if (devices == value.end() || !devices->is_array()) return invalid("devices must be a list of objects");
    for (size_t i = 0; i < devices->size() && i < limits::kReplicasMax; ++i) {
        BATON_TRY_ASSIGN(auto device, parse_device((*devices)[i], where + ".devices[" + std::to_string(i) + "]"));
        entry.devices.push_back(std::move(device));
    }
    return entry;
}

/// Check 16: names baton's and the reference's own replicas use.
bool is_reserved_replica_uid(std::string_view uid) {
    if (uid.ends_with("-rank0")) return true;
    size_t digits = 0;
    while (digits < uid.size() && std::isdigit(static_cast<unsigned char>(uid[uid.size() - 1 - digits])) != 0) ++digits;
    uid.remove_suffix(digits);
    return digits > 0 && uid.size() > 4 && uid.ends_with("-rep");
}

/// Checks 12–14 of one entry.
Expected<void> check_device(const ReplicaConfigEntry& entry, size_t i) {
    if (entry.devices.size() != 1)
        return bad("Each replica_config entry must have exactly one device (replica " + std::to_string(i) + " has " +
                       std::to_string(entry.devices.size()) +
                       "). Cross-worker sharding per replica is not supported yet.",
                   "replica_config");
    const auto& device = entry.devices[0];
    if (device.n_gpu && !device.gpu_idx.empty() && *device.n_gpu != static_cast<int64_t>(device.gpu_idx.size()))
        return bad(at(i) + ".devices[0].n_gpu (" + std::to_string(*device.n_gpu) + ") must equal len(gpu_idx) (" +
                       std::to_string(device.gpu_idx.size()) + "), or be 'auto'.",
                   "replica_config");
    if (std::any_of(device.gpu_idx.begin(), device.gpu_idx.end(), [](int64_t g) { return g < 0; }))
        return bad(at(i) + ".devices[0].gpu_idx must be non-negative integers.", "replica_config");
    return {};
}

}  // namespace

Expected<std::optional<uint32_t>> parse_replica(const Json& body) {
    const auto it = body.find("replica");
    if (it == body.end()) return std::optional<uint32_t>();
    if (it->is_boolean()) return bad("Invalid input. The `replica` field must be an integer, got a boolean.", "replica");
    if (it->is_number_float()) return bad("Invalid input. The `replica` field must be an integer, got a float.", "replica");
    int64_t n = 0;
    if (is_integer(*it)) {
        n = it->is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(it->get<uint64_t>(), INT32_MAX))
                                     : it->get<int64_t>();
    } else {
        const std::string digits = it->is_string() ? strip(it->get_ref<const std::string&>()) : std::string();
        if (digits.empty() || !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
            return bad("Invalid input. The `replica` field must be a valid integer.", "replica");
        for (const char c : digits) n = std::min<int64_t>(n * 10 + (c - '0'), INT32_MAX);
    }
    if (n < 1) return bad("Invalid input. The `replica` field must be at least 1.", "replica");
    if (n > static_cast<int64_t>(limits::kReplicasMax))
        return bad("Invalid input. The `replica` field must be at most " + std::to_string(limits::kReplicasMax) + ".",
                   "replica");
    return std::optional<uint32_t>(static_cast<uint32_t>(n));
}

Expected<std::vector<ReplicaConfigEntry>> parse_replica_config(const Json& value) {
    if (!value.is_array()) return invalid("it must be a list of objects");
    if (value.size() > limits::kReplicasMax)
        return invalid("it must have at most " + std::to_string(limits::kReplicasMax) + " entries");
    std::vector<ReplicaConfigEntry> entries;
    for (size_t i = 0; i < value.size(); ++i) {
        BATON_TRY_ASSIGN(auto entry, parse_entry(value[i], at(i)));
        entries.push_back(std::move(entry));
    }
    return entries;
}

Expected<void> check_roles(const std::vector<ReplicaConfigEntry>& entries, LaunchRequest& request) {
    bool prefill = false, decode = false, hybrid = false;
    for (const auto& e : entries) {
        const Role role = e.role.value_or(Role::kHybrid);
        prefill |= role == Role::kPrefill;
        decode |= role == Role::kDecode;
        hybrid |= role == Role::kHybrid;
    }
    if (!prefill && !decode) return {};
    if (request.model_type != "LLM" || !is_known_engine(request.model_engine))
        return bad("PD separation requires model_type=LLM and model_engine=" + known_engines_text(), "replica_config");
    if (!prefill || !decode || hybrid)
        return bad("PD separation requires both prefill and decode replicas, without hybrid replicas",
                   "replica_config");
    request.pd = true;
    return {};
}

Expected<void> place_replicas(const std::vector<ReplicaConfigEntry>& entries, LaunchRequest& request) {
    if (entries.size() != request.replica)
        return bad("replica_config length (" + std::to_string(entries.size()) + ") must equal replica (" +
                       std::to_string(request.replica) + ").",
                   "replica_config");
    for (size_t i = 0; i < entries.size(); ++i) BATON_TRY(check_device(entries[i], i));
    for (size_t i = 0; i < entries.size(); ++i) {
        const auto& e = entries[i];
        ReplicaPlacement placement;
        placement.role = e.role.value_or(Role::kHybrid);
        placement.worker_ip = e.devices[0].worker_ip;
        placement.n_gpu = e.devices[0].n_gpu;
        placement.gpu_idx = e.devices[0].gpu_idx;
        if (e.replica_uid) {
            placement.replica_uid = strip(*e.replica_uid);
            if (placement.replica_uid.empty())
                return bad(at(i) + ".replica_uid must not be empty or whitespace-only.", "replica_config");
        }
        request.placements.push_back(std::move(placement));
    }
    return check_replica_uids(request);
}

Expected<std::optional<ReplicaPlacement>> parse_added_replica(std::string_view body) {
    if (body.empty()) return std::nullopt;
    BATON_TRY_ASSIGN(const Json json, parse_json_text(body));
    if (!json.is_object()) return bad("the body must be a JSON object, got " + kind_of(json));
    for (const auto& [key, value] : json.items())
        if (!value.is_null() && (!is_control_key(key) || key == "worker_ip" || key == "gpu_idx" || key == "replica-config"))
            return bad("a replica that is added takes replica_config or n_gpu, not " + in_quotes(key), key);
    BATON_TRY_ASSIGN(const auto replicas, parse_replica(json));
    if (replicas.value_or(1) != 1) return bad("replicas are added one at a time; `replica` must be 1", "replica");
    const Json* config = member(json, "replica_config");
    const Json* n_gpu = member(json, "n_gpu");
    if (config != nullptr && n_gpu != nullptr) return bad("Cannot specify n_gpu together with replica_config.", "replica_config");
    if (n_gpu != nullptr && !(n_gpu->is_string() && *n_gpu == "auto")) {
        if (!is_integer(*n_gpu) || n_gpu->get<int64_t>() < 0) return bad("n_gpu must be a non-negative integer or 'auto'", "n_gpu");
        ReplicaPlacement placement;
        placement.n_gpu = n_gpu->get<int64_t>();
        return placement;
    }
    if (config == nullptr) return std::nullopt;
    BATON_TRY_ASSIGN(const auto entries, parse_replica_config(config->is_array() ? *config : Json::array({*config})));
    if (entries.size() != 1) return invalid("it must be one object");
    if (entries[0].role.value_or(Role::kHybrid) != Role::kHybrid)
        return bad("only hybrid replicas can be added to a running model", "replica_config");
    LaunchRequest one;
    BATON_TRY(place_replicas(entries, one));
    return std::move(one.placements.front());
}

Expected<void> check_replica_uids(const LaunchRequest& request) {
    for (const auto& p : request.placements)
        if (is_reserved_replica_uid(p.replica_uid))
            return bad("replica_uid " + in_quotes(p.replica_uid) +
                           " collides with a reserved internal replica/rank identifier; please choose another name.",
                       "replica_config");
    std::set<std::string> seen;
    for (size_t i = 0; i < request.placements.size(); ++i) {
        std::string uid = request.placements[i].replica_uid;
        if (uid.empty() && !request.model_uid.empty()) uid = request.model_uid + "-" + std::to_string(i);
        if (!uid.empty() && !seen.insert(uid).second)
            return bad("Duplicate replica_uid " + in_quotes(uid) + " in replica_config.", "replica_config");
    }
    return {};
}

}  // namespace baton::config

#include <algorithm>

#include "baton/base/limits.hpp"
#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

/// worker_ip as a string, a comma list or a list of strings.
Expected<std::vector<std::string>> parse_worker_ips(const Json& value) {
    std::vector<std::string> out;
    const auto add = [&](std::string_view text) {
        while (!text.empty()) {
            const size_t comma = std::min(text.find(','), text.size());
            std::string_view one = text.substr(0, comma);
            while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
            while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
            if (!one.empty()) out.emplace_back(one);
            text.remove_prefix(std::min(comma + 1, text.size()));
        }
    };
    if (value.is_string()) {
        add(value.get_ref<const std::string&>());
        return out;
    }
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); }))
        return bad("worker_ip must be a string or a list of strings, got " + kind_of(value), "worker_ip");
    for (const Json& v : value) add(v.get_ref<const std::string&>());
    return out;
}

Expected<std::vector<int64_t>> parse_gpu_indexes(const Json& value) {
    if (is_integer(value)) return parse_gpu_indexes(Json::array({value}));
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_integer))
        return bad("gpu_idx must be an integer or a list of integers", "gpu_idx");
    std::vector<int64_t> out;
    for (const Json& v : value) out.push_back(v.get<int64_t>());
    if (std::any_of(out.begin(), out.end(), [](int64_t g) { return g < 0; }))
        return bad("gpu_idx must be non-negative integers.", "gpu_idx");
    return out;
}

}  // namespace

Expected<void> place_ordinary(const Json& body, LaunchRequest& request) {
    std::vector<std::string> ips;
    if (const Json* v = member(body, "worker_ip")) {
        BATON_TRY_ASSIGN(ips, parse_worker_ips(*v));
    }
    std::vector<int64_t> gpus;
    if (const Json* v = member(body, "gpu_idx")) {
        BATON_TRY_ASSIGN(gpus, parse_gpu_indexes(*v));
    }
    if (gpus.size() % request.replica != 0)
        return bad("Invalid input. Allocated gpu must be a multiple of replica.", "gpu_idx");
    std::optional<int64_t> n_gpu;
    if (const auto it = body.find("n_gpu"); it != body.end() && !(it->is_string() && *it == "auto")) {
        if (!it->is_null() && !is_integer(*it))
            return bad("n_gpu must be an integer, 'auto' or null, got " + kind_of(*it), "n_gpu");
        n_gpu = it->is_null() ? 0 : it->get<int64_t>() <= 0 ? -1 : it->get<int64_t>();
    }
    const size_t share = gpus.size() / request.replica;
    for (uint32_t i = 0; i < request.replica; ++i) {
        ReplicaPlacement placement;
        if (!ips.empty()) placement.worker_ip = ips[i % ips.size()];
        placement.n_gpu = n_gpu;
        const auto first = gpus.begin() + static_cast<std::ptrdiff_t>(i * share);
        placement.gpu_idx.assign(first, first + static_cast<std::ptrdiff_t>(share));
        request.placements.push_back(std::move(placement));
    }
    return {};
}

}  // namespace baton::config

#include "xavier/faults.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "baton/base/log.hpp"

namespace baton::xavier {
namespace {

constexpr std::array<std::string_view, 7> kSteps{"pull_started", "pull_first", "pull_half", "pull_copied",
                                                 "serve_started", "serve_first", "serve_last"};

Expected<int64_t> number(std::string_view text, std::string_view fault) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc{} || end != text.data() + text.size() || n < 0)
        return fail(ErrorCode::kInvalidArgument, "fault '" + std::string(fault) + "' needs a number", "fault");
    return n;
}

Expected<void> add(TransferThread::Faults& faults, std::string_view fault) {
    const size_t equals = fault.find('=');
    const std::string_view name = fault.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view{} : fault.substr(equals + 1);
    if (fault == "corrupt") {
        faults.corrupt_one_byte = true;
    } else if (fault == "fail_pulls") {
        faults.fail_pulls = true;
    } else if (fault == "stall") {
        faults.stall = true;
    } else if (fault == "nccl_one_gpu") {
        faults.nccl_one_gpu = true;
    } else if (name == "pull_delay_ms") {
        BATON_TRY_ASSIGN(faults.delay_ms, number(value, fault));
    } else if (name == "pace_us") {
        BATON_TRY_ASSIGN(faults.pace_us, number(value, fault));
    } else if (name == "kill_at" && std::find(kSteps.begin(), kSteps.end(), value) != kSteps.end()) {
        faults.kill_at = value;
    } else if (name == "drop" && !value.empty()) {
        faults.drop = value;
    } else {
        return fail(ErrorCode::kInvalidArgument, "unknown fault '" + std::string(fault) + "'", "fault");
    }
    return {};
}

}  // namespace

void die_at(const TransferThread::Faults& faults, std::string_view step) {
    if (faults.kill_at != step) return;
    log::warn("xavier.killed_at", {{"step", step}});
    ::raise(SIGKILL);
}

Expected<TransferThread::Faults> parse_faults(std::string_view text) {
    TransferThread::Faults faults;
    while (!text.empty()) {
        const size_t comma = text.find(',');
        BATON_TRY(add(faults, text.substr(0, comma)));
        text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    }
    return faults;
}

}  // namespace baton::xavier

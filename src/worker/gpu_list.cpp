#include "worker/gpu_list.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "baton/base/clock.hpp"
#include "baton/base/fd.hpp"

namespace baton::worker {
namespace {

constexpr size_t kAnswerBytesMax = 1 << 20;

/// In the child: the answer as a message, so that both sides speak one format.
[[noreturn]] void answer(int fd, const std::function<Expected<std::vector<backend::CudaDevice>>()>& ask) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    wire::WorkerReady found;
    if (const auto devices = ask(); devices) {
        for (const backend::CudaDevice& d : *devices) found.gpus.push_back({d.index, d.name, d.total_bytes});
    } else {
        found.gpu_error = devices.error().message;
    }
    const std::vector<std::byte> bytes = wire::encode(wire::Message(found));
    size_t sent = 0;
    while (sent < bytes.size()) {
        const ssize_t n = ::write(fd, bytes.data() + sent, bytes.size() - sent);
        if (n <= 0) break;
        sent += static_cast<size_t>(n);
    }
    ::_exit(0);  // no destructors: the driver's own take their time, or hang
}

/// All that comes until the other end closes; nothing when that takes too long.
std::vector<std::byte> read_all(int fd, int64_t timeout_ms) {
    std::vector<std::byte> bytes;
    const TimeMs until = steady_now() + timeout_ms;
    std::byte chunk[4096];
    for (;;) {
        pollfd p{fd, POLLIN, 0};
        const int ready = ::poll(&p, 1, static_cast<int>(std::max<int64_t>(until - steady_now(), 0)));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return {};
        const ssize_t n = ::read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return bytes;
        bytes.insert(bytes.end(), chunk, chunk + n);
        if (bytes.size() > kAnswerBytesMax) return {};
    }
}

Expected<wire::WorkerReady> decode(const std::vector<std::byte>& bytes) {
    if (bytes.size() < wire::kFrameHeaderBytes) return fail(ErrorCode::kUnavailable, "no answer");
    const auto all = std::span(bytes);
    BATON_TRY_ASSIGN(const wire::FrameHeader header, wire::decode_header(all.first(wire::kFrameHeaderBytes)));
    BATON_TRY_ASSIGN(wire::Message message, wire::decode_body(header.type, all.subspan(wire::kFrameHeaderBytes)));
    if (auto* ready = std::get_if<wire::WorkerReady>(&message)) return std::move(*ready);
    return fail(ErrorCode::kCorrupt, "another message");
}

}  // namespace

GpuList list_gpus(const std::function<Expected<std::vector<backend::CudaDevice>>()>& ask, int64_t timeout_ms) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return {{}, std::string("listing the GPUs: ") + std::strerror(errno)};
    UniqueFd reader(ends[0]), writer(ends[1]);
    const pid_t child = ::fork();
    if (child < 0) return {{}, std::string("listing the GPUs: ") + std::strerror(errno)};
    if (child == 0) answer(writer.get(), ask);
    writer.reset();
    const auto found = decode(read_all(reader.get(), timeout_ms));
    if (!found) ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (found) return {found->gpus, found->gpus.empty() && found->gpu_error.empty() ? "the driver lists no GPU" : found->gpu_error};
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        return {{}, "listing the GPUs was ended by signal " + std::to_string(WTERMSIG(status))};
    return {{}, "listing the GPUs got no answer"};
}

}  // namespace baton::worker

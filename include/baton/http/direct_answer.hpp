#pragma once

#include <string>

namespace baton::http {

/// What an Exchange of a Server also is, without TLS: the thread that answers can write to the
/// socket itself, which saves waking the connection's I/O thread. Any thread.
class DirectAnswer {
  public:
    virtual ~DirectAnswer() = default;
    /// As Exchange::write(), but the bytes wait for flush(), or for a write() or end() after them.
    virtual bool queue(std::string bytes) = 0;
    /// Sends what queue() took. `here`: from this thread, as far as the socket takes it at once.
    virtual void flush(bool here) = 0;
    /// From now on respond() and end() do the same, as far as nothing but the next request follows.
    /// ServerOptions::on_exchange_end is then called, and a held token released, on this thread.
    virtual void answer_here() = 0;
};

}  // namespace baton::http

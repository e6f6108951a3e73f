#include "actors/errors.h"

namespace troupe {
namespace {
constexpr auto category = caf::atom("troupe");

/// CAF takes code 0 for "no error" and keeps neither category nor context then: ours start at 1.
constexpr std::uint8_t first_code = 1;
}  // namespace

caf::error to_caf(const Error& error) {
  return caf::error(static_cast<std::uint8_t>(static_cast<std::uint8_t>(error.code) + first_code),
                    category, caf::make_message(error.text));
}

Error from_caf(const caf::error& error, const caf::actor_system& system) {
  if (!error) return {ErrorCode::internal, "an error without a code"};
  if (error.category() == category) {
    const int code = error.code() - first_code;
    const bool known = code <= static_cast<int>(ErrorCode::internal);
    std::string text = "no reason given";
    if (error.context().match_elements<std::string>())
      text = error.context().get_as<std::string>(0);
    return {known ? static_cast<ErrorCode>(code) : ErrorCode::internal, std::move(text)};
  }
  // What users meet in words of their own; the rest as CAF writes it.
  if (error == caf::exit_reason::remote_link_unreachable)
    return {ErrorCode::peer_lost, "the connection to its process was lost"};
  if (error == caf::sec::cannot_connect_to_node)
    return {ErrorCode::peer_lost, "nobody answers there"};
  if (error == caf::sec::cannot_open_port)
    return {ErrorCode::io, "the port cannot be opened; another program may have it"};
  if (error == caf::sec::connection_timeout)
    return {ErrorCode::timeout, "what listens there does not answer as a run of Troupe"};
  ErrorCode code = ErrorCode::internal;
  if (error == caf::sec::request_timeout) code = ErrorCode::timeout;
  if (error == caf::sec::request_receiver_down) code = ErrorCode::peer_lost;
  return {code, system.render(error)};
}

}  // namespace troupe

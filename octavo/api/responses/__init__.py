"""The Responses API: routes, stored responses, and server-side tools."""

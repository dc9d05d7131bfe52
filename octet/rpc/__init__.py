"""What every gRPC server of the house does alike: parse, refuse, listen."""

import SwiftUI

struct A: View {
    @State private var name = "x"
    var body: some View {
        NavigationStack {
            Form {
                TextField("Name", text: $name)
                if name.isEmpty { Text("Empty") } else { Text("Full") }
                Button("Save") { save(name) }
                Toggle("On", isOn: $on).padding()
            }.navigationTitle("Title")
        }
    }
}
